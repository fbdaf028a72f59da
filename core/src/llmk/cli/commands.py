"""Commands that plugins provide."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from llmk.api import Command, CommandSpec, LlmkError, PluginError
from llmk.api.errors import describe
from llmk.cli.output import say
from llmk.config import load
from llmk.kernel.first_party import missing_wheel
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registered, Registry

FIRST_PARTY = {
    "bench latency": "measure the time of one batch of a model in this process, and per token",
    "bench serve": "load an OpenAI-compatible server, and measure what its users feel",
    "bench startup": "measure the time from the launch of llmk serve to the first token",
    "bench throughput": "measure tokens per second of a model in this process",
    "plugins check": "run the conformance kit on a plugin and print a report card",
    "plugins new": "write a new plugin from a template",
    "verify": "verify that llmk works on this machine's device, and how fast",
}
"""Commands of llmk's own wheels, which are listed even if the wheel is not installed."""


def list_commands(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Adds the commands that plugins provide to ``llmk``, by their names and summaries alone. Where these can't be had,
    says why on standard error: the help is what people read when something is broken."""
    try:
        add_commands(subparsers, called="")
    except Exception as error:
        why = error if isinstance(error, LlmkError) else describe(error)
        say(f"llmk: commands of plugins are not listed: {why}")


def add_commands(subparsers: argparse._SubParsersAction[Any], group: str = "", *, called: str | None = None) -> None:
    """Adds the commands that plugins provide to ``llmk``, or to the command ``group``; ``args.run`` runs the command.

    Commands of broken plugins are left out; two plugins with the same command raise PluginError. Commands of llmk's own
    wheels that are not installed are added too, and say what to install. Only the command ``called`` is imported, so
    that it does not depend on others; with ``None``, all are.
    """
    found: dict[str, Registered[CommandSpec]] = {}
    with redirect_stdout(sys.stderr):  # what a plugin prints must not be taken for a command's output
        registry = Registry.discover(load().config.plugins)
    for registered in registry.of(CommandSpec):
        name = registered.spec.name
        if name in found:
            raise PluginError(
                f"{found[name].plugin.wheel} and {registered.plugin.wheel} both provide the command llmk {name}",
                hint=f'[plugins] disable = ["{registered.plugin.name}"] leaves one out',
            )
        found[name] = registered
    for name in sorted({*found, *FIRST_PARTY}):
        above, _, word = name.rpartition(" ")
        if above != group or word in subparsers.choices:
            continue
        if name in found and called not in (None, word):
            subparsers.add_parser(word, help=_help(found[name].spec.summary))
        elif name in found:
            _add(subparsers, word, found[name])
        elif wheel := missing_wheel(name):
            text = f"{FIRST_PARTY[name]} (not installed: {wheel})"
            hint = f"it is in {wheel}: pip install {wheel}"
            _add_broken(subparsers, word, text, PluginError(f"llmk {name} is not installed", hint=hint))


def _add(subparsers: argparse._SubParsersAction[Any], word: str, found: Registered[CommandSpec]) -> None:
    try:
        command: Command = load_object(
            found.spec.implementation, plugin=found.plugin, kind="command", id=found.spec.id
        )()
    except Exception as error:
        _add_broken(subparsers, word, f"{found.spec.summary} (broken)", error)
        return
    parser = subparsers.add_parser(word, help=_help(found.spec.summary))
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _help(summary: str) -> str:
    """A text as argparse takes it."""
    return summary.replace("%", "%%")


def _add_broken(subparsers: argparse._SubParsersAction[Any], word: str, text: str, error: Exception) -> None:
    """Adds a command that accepts any arguments and raises ``error`` when it is called."""
    parser = subparsers.add_parser(word, help=_help(text), prefix_chars="\0", add_help=False)
    parser.add_argument("rest", nargs="*")
    parser.set_defaults(run=partial(_refuse, error))


def _refuse(error: Exception, args: argparse.Namespace) -> int:
    raise error

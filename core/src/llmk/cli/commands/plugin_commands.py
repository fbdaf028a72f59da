"""Adds the commands that plugins provide to the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from llmk.api import Command, CommandSpec, PluginError
from llmk.cli.commands.summaries import escaped
from llmk.config import load
from llmk.kernel.first_party import how_to_install, missing_wheel
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


def add_commands(subparsers: argparse._SubParsersAction[Any], group: str = "", *, called: str | None = None) -> None:
    """Adds the commands that plugins provide to ``llmk``, or to the command ``group``; ``args.run`` runs the command.

    Commands of broken plugins are left out; two plugins with the same command raise PluginError. Commands of llmk's own
    wheels that are not installed are added too, and say what to install. Only the command ``called`` is imported, so
    that it does not depend on others; with ``None``, all are.
    """
    with redirect_stdout(sys.stderr):  # what a plugin prints must not be taken for a command's output
        found = _commands(Registry.discover(load().config.plugins))
    for word, name in _words(found, group):
        if word in subparsers.choices:
            continue
        if name in found and called not in (None, word):
            subparsers.add_parser(word, help=escaped(found[name].spec.summary))
        elif name in found:
            _add(subparsers, word, found[name])
        else:
            error = PluginError(f"llmk {name} is not installed", hint=how_to_install(name))
            _add_broken(subparsers, word, _summary(found, name), error)


def summaries(registry: Registry) -> dict[str, str]:
    """What the commands of plugins do that are called by one word; raises PluginError if two have the same name."""
    found = _commands(registry)
    return {word: _summary(found, name) for word, name in _words(found, "")}


def _commands(registry: Registry) -> dict[str, Registered[CommandSpec]]:
    """Commands of plugins by name; raises PluginError if two have the same."""
    found: dict[str, Registered[CommandSpec]] = {}
    for registered in registry.of(CommandSpec):
        name = registered.spec.name
        if name in found:
            raise PluginError(
                f"{found[name].plugin.wheel} and {registered.plugin.wheel} both provide the command llmk {name}",
                hint=f'[plugins] disable = ["{registered.plugin.name}"] leaves one out',
            )
        found[name] = registered
    return found


def _words(found: Iterable[str], group: str) -> list[tuple[str, str]]:
    """Commands of a group, and those of llmk's own wheels that are not installed: the last word and the whole name of
    each."""
    names = sorted({*found, *(name for name in FIRST_PARTY if missing_wheel(name))})
    return [(name.rpartition(" ")[2], name) for name in names if name.rpartition(" ")[0] == group]


def _summary(found: Mapping[str, Registered[CommandSpec]], name: str) -> str:
    """What a command does, or that it is not installed."""
    return found[name].spec.summary if name in found else f"{FIRST_PARTY[name]} (not installed: {missing_wheel(name)})"


def _add(subparsers: argparse._SubParsersAction[Any], word: str, found: Registered[CommandSpec]) -> None:
    try:
        command: Command = load_object(
            found.spec.implementation, plugin=found.plugin, kind="command", id=found.spec.id
        )()
    except Exception as error:
        _add_broken(subparsers, word, f"{found.spec.summary} (broken)", error)
        return
    parser = subparsers.add_parser(word, help=escaped(found.spec.summary))
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _add_broken(subparsers: argparse._SubParsersAction[Any], word: str, text: str, error: Exception) -> None:
    """Adds a command that accepts any arguments and raises ``error`` when it is called."""
    parser = subparsers.add_parser(word, help=escaped(text), prefix_chars="\0", add_help=False)
    parser.add_argument("rest", nargs="*")
    parser.set_defaults(run=partial(_refuse, error))


def _refuse(error: Exception, args: argparse.Namespace) -> int:
    raise error

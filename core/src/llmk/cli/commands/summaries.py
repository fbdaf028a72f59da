"""The list of commands that plugins provide, for ``llmk --help``.

Another process imports the plugins: people read the help when something is broken, and a plugin may hang, or end the
process that it is imported in.
"""

from __future__ import annotations

import argparse
import json
import re
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import Any

from llmk.cli.output import say
from llmk.kernel.interpreter import PYTHON

SECONDS = 10.0
"""Time limit of the process."""
PLUGIN_SECONDS = 2.0
"""Time limit of the import of a plugin's specs, and of each hook, where ``plugins.import_seconds`` is not less."""


def list_commands(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Adds the commands that plugins provide to ``llmk``, by their names and summaries alone. Where some can't be had,
    says why on standard error."""
    commands, problems = _found()
    for word, summary in commands.items():
        if word not in subparsers.choices:
            subparsers.add_parser(word, help=escaped(summary))
    for problem in problems:
        say(f"llmk: commands of plugins may be missing here: {problem}")


def escaped(summary: str) -> str:
    """A text as argparse takes it."""
    return summary.replace("%", "%%")


def _found() -> tuple[dict[str, str], list[str]]:
    """Summaries by command, and what keeps others from being listed."""
    try:
        with Popen([*PYTHON, "-m", "llmk.cli.commands"], stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as process:
            out, said, end = _output(process)
    except OSError as error:
        return {}, [f"no process can be started: {error}"]
    try:
        found = json.loads(out)
    except ValueError:
        return {}, [_why(said, end)]
    return found["commands"], found["problems"]


def _output(process: Popen[bytes]) -> tuple[bytes, str, str]:
    """What the process wrote on standard output and on standard error, and how it ended."""
    try:
        out, said = process.communicate(timeout=SECONDS)
        end = f"ended with exit code {process.returncode}"
    except TimeoutExpired:
        end = f"was not finished after {SECONDS:g} s"
        process.kill()
        out, said = _rest(process)
    finally:
        process.kill()
    return out, said.decode(errors="replace"), end


def _rest(process: Popen[bytes]) -> tuple[bytes, bytes]:
    """What a killed process wrote, and what its watchdog says of its end. A process that a plugin started may keep the
    pipes open, also where all is written."""
    try:
        return process.communicate(timeout=1)
    except TimeoutExpired as late:
        return late.output or b"", late.stderr or b""


def _why(said: str, end: str) -> str:
    """Why there is no list: how the process ended, and what its watchdog said of it."""
    by_watchdog: list[str] = re.findall(r"^llmk: (.*\n  hint: .*)", said, re.MULTILINE)
    hint = f"llmk plugins --plugins.import-seconds={PLUGIN_SECONDS:g} shows the state of each plugin"
    why = f": {by_watchdog[-1]}" if by_watchdog else f"\n  hint: {hint}"
    return f"the process that imports plugins {end}{why}"

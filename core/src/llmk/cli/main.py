"""The command ``llmk``: imports and runs the subcommand, and prints errors as one clear message."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from llmk.cli.output import say
from llmk.kernel.interpreter import keep_path_safe

if TYPE_CHECKING:
    from subprocess import Popen

COMMANDS = {
    "serve": "serve a model through an OpenAI-compatible API",
    "run": "answer one prompt and stop",
    "chat": "talk to a model in the terminal",
    "pull": "download a model by its name",
    "models": "list downloaded models, and which of them can be served",
    "plugins": "list installed plugins and the state of each",
    "explain": "show which kernels would be chosen for a model, and why",
    "tune": "measure which kernels are fastest here for a model",
    "doctor": "check this installation and report what is missing",
    "config": "show the configuration and the origin of each value",
    "bench": "measure a model on this machine",
    "keys": "manage API keys with roles and quotas",
}
"""Every subcommand, by its module in ``llmk.cli``, with its line of help."""


_ALIKE = 0.65
"""How much alike a word must be to one that is suggested for it."""

_OFF, _ON = ("false", "off", "no"), ("true", "on", "yes")
"""Values that people give to switches, which take none."""

EXTENDED = ("plugins", "bench")
"""Commands to which plugins add actions. To save time, plugins are discovered only if an action is named."""


class Formatter(argparse.HelpFormatter):
    """Prints the usage as one line with required arguments only, since commands have a hundred options."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """See argparse, which passes a prefix when it formats only the name of a command."""
        if usage is None and prefix is None:
            needed = [
                f"{a.option_strings[0]} {self._format_args(a, '')}" for a in actions if a.option_strings and a.required
            ]
            words = [self._format_args(action, "") for action in actions if not action.option_strings]
            usage = " ".join(("%(prog)s", *needed, "[OPTION ...]", *words))
        super().add_usage(usage, actions, groups, prefix)


_OF_THE_MACHINE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there, or name another place"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this user read it, and write it if it is llmk's own"),
    errno.EROFS: "nothing can be written there: name another place",
    errno.ENAMETOOLONG: "check the name",
    errno.EMFILE: "allow this process more open files: ulimit -n 16384",
}
"""Errors of files that are no errors of llmk, by what to do."""


class Parser(argparse.ArgumentParser):
    """Reports invalid arguments in two lines, the error and the most similar option, rather than with all options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": Formatter} | kwargs)

    def print_help(self, file: Any = None) -> None:
        """Common options alone; ``--help-all`` prints all of them."""
        has_more = any("--help-all" in action.option_strings for action in self._actions)
        with import_module("llmk.config.flags").only_common(self) if has_more else nullcontext():
            super().print_help(file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Extends argparse, whose positional lists must be contiguous: words after an option are added to ``words``.
        Options of plugins, which are not known yet, are assignments: ``--plugin.NAME.KEY=VALUE``, or alone for true."""
        for option, value in pairwise(args or ()):
            switch = isinstance(self._option_string_actions.get(option), argparse.BooleanOptionalAction)
            if switch and value.lower() in (*_OFF, *_ON):
                self.error(f"argument {option}: ignored explicit argument {value!r}")  # as argparse says of --x=false
        if args is not None and "--set" in self._option_string_actions:
            args = [f"--set={_assigned(arg)}" if arg.startswith("--plugin.") else arg for arg in args]
        found, rest = super().parse_known_args(args, namespace)
        words = getattr(found, "words", None)
        if words and not any(word.startswith("-") for word in rest):
            words += rest
            rest = []
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n  hint: {self._hint(message)}\n")

    def _hint(self, message: str) -> str:
        from difflib import get_close_matches

        from llmk.config.foreign_flags import hint_for

        if switch := re.search(r"argument --(?:no-)?([^/,:]+).*: ignored explicit argument '(\w+)'", message):
            name, value = switch.groups()
            return f"a switch takes no value: --{'no-' if value.lower() in _OFF else ''}{name}"
        unknown, known = self._unknown(message), self._known()
        if known_hint := hint_for(unknown):
            return known_hint
        if message.startswith("unrecognized") and not unknown.startswith("-"):
            return "a path or text with spaces needs quotes, and one model is served"
        choices = re.findall(r"'([^']+)'", message.partition("choose from")[2])
        close = [name for name in known if unknown and name.rpartition(".")[2] == unknown.removeprefix("--")]
        close = close or get_close_matches(unknown, choices or known, n=1, cutoff=_ALIKE)
        if close:
            return f"did you mean {close[0]}?"
        if choices:
            return "take one of these"
        if "--help-all" in known:
            return "--help-all lists all options of a command"
        return f"{self.prog} --help lists all options"

    def _known(self) -> list[str]:
        """Options and choices of this parser and of the commands in use."""
        known = [name for action in self._actions for name in (*action.option_strings, *map(str, action.choices or ()))]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                known += [name for parser in action.choices.values() for name in parser._known()]
        return known

    @staticmethod
    def _unknown(message: str) -> str:
        found = re.search(r"unrecognized arguments: ([^\s=]+)|invalid choice: '([^']+)'", message)
        return (found[2] or found[1].replace("_", "-")) if found else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code; if an LlmkError is raised, that of its class."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if debug:
        arguments.remove("--debug")
    keep_path_safe()
    try:
        os.getcwd()
    except FileNotFoundError:
        say("llmk: the current folder is not there any more\n  hint: go to one that is: cd")
        return 1
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`llmk plugins | head`); the interpreter must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        code = _report(error, debug)
        try:
            sys.stderr.flush()
        except OSError:  # what could not be written must not change the exit code when the interpreter tries again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        return code


@contextmanager
def _spawned(wanted: str, arguments: list[str]) -> Iterator[Popen[bytes] | None]:
    """For ``llmk serve``, the process of the engine. It is started first, since its imports take seconds, and it is
    killed when the command ends."""
    if wanted != "serve" or {"-h", "--help", "--version"}.intersection(arguments):
        yield None
        return
    from llmk.engine.processes.spawn import AHEAD, spawn

    with spawn(AHEAD) as process:
        try:
            yield process
        finally:
            process.kill()


def _assigned(option: str) -> str:
    name, equals, value = option.removeprefix("--").partition("=")
    return f"{name}={value if equals else 'true'}"


def _run(arguments: list[str]) -> int:
    wanted = next((argument for argument in arguments if not argument.startswith("-")), "")
    with _spawned(wanted, arguments) as spawned:
        parser = Parser(prog="llmk", description="Serves large language models, from plugins.", allow_abbrev=False)
        parser.add_argument("--version", action="store_true", help="print the version and stop")
        parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
        subparsers = parser.add_subparsers(metavar="COMMAND", dest="command")
        for name, help in COMMANDS.items():
            if name == wanted:
                import_module(f"llmk.cli.{name}").add_parser(subparsers)
            else:
                subparsers.add_parser(name, help=help)
        _add_commands(subparsers, wanted, arguments)
        args = parser.parse_args(arguments, argparse.Namespace(spawned=spawned))
        if args.version:
            from llmk import __version__

            print(f"llmk {__version__}")
            return 0
        if not args.command:
            parser.print_help()
            return 0
        run = getattr(args, "run", None) or import_module(f"llmk.cli.{args.command}").run
        code: int = run(args)
        return code


def _add_commands(subparsers: argparse._SubParsersAction[Any], wanted: str, arguments: list[str]) -> None:
    """Adds what plugins provide, where it is called or listed: finding plugins takes longer than some commands."""
    leading = arguments[: arguments.index(wanted)] if wanted else arguments
    is_listed = not wanted or bool({"-h", "--help"}.intersection(leading))
    is_action = wanted in COMMANDS and _names_action(wanted, arguments)
    if "--version" in leading or not (is_listed or is_action or wanted not in COMMANDS):
        return
    if is_listed:
        from llmk.cli.commands.summaries import list_commands

        list_commands(subparsers)
        return
    from llmk.cli.commands.plugin_commands import add_commands

    if is_action:
        add_commands(actions_of(subparsers.choices[wanted]), wanted)
    else:
        add_commands(subparsers, called=wanted)


def actions_of(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Any]:
    """Where the actions of a command are added."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action
    return parser.add_subparsers(metavar="[ACTION]", dest="action")


def _names_action(command: str, arguments: list[str]) -> bool:
    """Whether an action of ``command`` is called, or its help, which lists the actions."""
    following = arguments[arguments.index(command) + 1 :]
    return command in EXTENDED and any(
        each in ("-h", "--help") or (position == 0 and not each.startswith("-"))
        for position, each in enumerate(following)
    )


def _report(error: Exception, debug: bool) -> int:
    from llmk.api.errors import LlmkError

    if debug:
        traceback.print_exception(error)
    if isinstance(error, LlmkError):
        say(f"llmk: {error}")
        return error.exit_code
    if isinstance(error, OSError) and (hint := _OF_THE_MACHINE.get(error.errno or 0)):
        say(f"llmk: {error.filename or 'the output'} can't be used: {error.strerror}\n  hint: {hint}")
        return 1
    hint = "" if debug else "; run it again with --debug for the traceback, and please report it"
    say(f"llmk: internal error: {type(error).__name__}: {error}{hint}")
    return 1

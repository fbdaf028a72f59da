"""The suite of commands: options, help and errors; and of examples, what is printed, also where files are damaged.

Commands run in processes of their own, in an empty folder. Without ``CommandSpec.examples``, which names a sequence of
:class:`~llmk_testing.command_example.CommandExample`, a command is not run beyond its help: it may do anything.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmk.api import Command, CommandSpec
from llmk.api.errors import describe
from llmk.cli.main import Parser
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.called import Called, call, without_torch
from llmk_testing.case import Case, Skip
from llmk_testing.command_example import CommandExample

_OWN = ("command", "debug", "run", "spawned", "version")
"""Attributes of the arguments that llmk itself sets, or reads before the command does."""
_ELSEWHERE = {"LC_ALL": "C", "COLUMNS": "40", "TERM": "dumb"}
_TURNED = """import os
_listdir, _scandir = os.listdir, os.scandir
class _Turned(list):
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def close(self): pass
    def __next__(self): return self.pop(0)
def _turned(path="."):
    with _scandir(path) as entries: return _Turned(sorted(entries, key=lambda entry: entry.name, reverse=True))
os.listdir = lambda path=".": sorted(_listdir(path), reverse=True)
os.scandir = lambda path=".": _turned(path)
"""
"""Folders that list their files from Z to A: no order is promised."""
_BIG = 128 << 10
_ODD_VALUES = ("0", "-3", "3", "1e999", "é x")
"""What a user may write as the value of an option."""
_UNKNOWN = "--no-such-option"
_FILES = 3
"""Files that are damaged, unless the check is thorough: each costs four processes, and the first one ten."""


def cases(spec: CommandSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one command."""

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "command", name, run)

    yield case("it is made without arguments, and named in a line", partial(_made, spec))
    yield case("its options are the same each time that they are added", partial(_alike, spec))
    yield case("options and arguments have help that can be shown", partial(_helped, spec))
    yield case("no option has a name that llmk takes", partial(_named, spec))
    yield case("its help is printed without torch, and nothing else", partial(_help, spec))
    yield case("an option that there isn't is refused in one message", partial(_unknown, spec))
    for name, run in (
        ("examples print what they say, with their exit codes", _prints),
        ("they do so again, in another locale, a narrow terminal, and with files in another order", _again),
        ("they do so where files are named by their whole paths", _elsewhere),
        ("options take any value, or refuse it in one message", _valued),
        ("examples have each option, an error, and a large file", _complete),
        ("files of examples stay as they are", _stays),
        ("a reader that leaves early is no error", _leaves),
        ("damaged files are named in one message, or do no harm", partial(_damaged, thorough=bench.thorough)),
        ("what examples say must be refused is", _refuses),
    ):
        yield case(name, partial(_with_examples, spec, run))


def _make(spec: CommandSpec) -> Command:
    made: Command = load_object(spec.implementation)()
    return made


def _parser(spec: CommandSpec, command: Command | None = None) -> Parser:
    """A parser with the options of the command."""
    parser = Parser(prog=f"llmk {spec.name}")
    try:
        (command or _make(spec)).add_arguments(parser)
    except argparse.ArgumentError as error:
        raise AssertionError(f"an option has a name that is taken: {error}") from error
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What the command added, actions of its actions too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from _actions(each)
        elif not isinstance(action, argparse._HelpAction):
            yield action


def _title(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def _made(spec: CommandSpec) -> None:
    _make(spec)
    assert spec.summary.strip(), "it has no summary, which llmk --help lists it with"
    assert len(spec.summary.splitlines()) == 1, f"its summary has several lines: {spec.summary!r}"


def _alike(spec: CommandSpec) -> str:
    one = _make(spec)
    first, again, other = (_described(_parser(spec, command)) for command in (one, one, None))
    assert first == again, f"added a second time, its options are {again}; the first time, they were {first}"
    assert first == other, f"another instance adds {other} instead of {first}"
    return f"{len(first)} options and arguments"


def _described(parser: argparse.ArgumentParser) -> list[str]:
    fields = ("nargs", "const", "default", "choices", "required", "help", "metavar")
    return [f"{_title(each)} {[str(getattr(each, name)) for name in fields]}" for each in _actions(parser)]


def _helped(spec: CommandSpec) -> None:
    parser = _parser(spec)
    for action in _actions(parser):
        assert action.help, f"{_title(action)} has no help; argparse.SUPPRESS hides it"
        for width in (40, 200):
            formatter = argparse.HelpFormatter(parser.prog, width=width)
            try:
                formatter.add_argument(action)
                formatter.format_help()
            except Exception as error:
                why = describe(error)
                raise AssertionError(
                    f"the help of {_title(action)} can't be shown; is a % meant as %%? {why}"
                ) from error
    parser.format_help()


def _named(spec: CommandSpec) -> None:
    for action in _actions(_parser(spec)):
        assert action.dest not in _OWN, f"{_title(action)} is args.{action.dest}, which is llmk's; name another dest"
        taken = {"-h", "--help", "--debug"}.intersection(action.option_strings)
        assert not taken, f"{_title(action)} takes {taken.pop()}, which is llmk's"


def _help(spec: CommandSpec) -> None:
    name = f"llmk {spec.name} --help"
    with TemporaryDirectory(prefix="llmk-") as folder, without_torch(name) as environ:
        done = call(spec.name, ["--help"], Path(folder), environ=environ)
    assert done.code == 0, f"{name} ended with {done.code}:\n{done.err[-1500:]}"
    start = f"usage: llmk {spec.name}"
    assert done.out.startswith(start), f"{name} printed {done.out[:80]!r}…, instead of {start!r}"
    assert not done.err, f"{name} wrote on standard error: {done.err[-1500:]}"


def _unknown(spec: CommandSpec) -> None:
    if any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in _actions(_parser(spec))):
        raise Skip("it takes all words that follow, as those of another program")
    with TemporaryDirectory(prefix="llmk-") as folder:
        done = call(spec.name, [_UNKNOWN], Path(folder))
    done.check_no_traceback(_UNKNOWN)
    assert done.code == 2, f"it ended with {done.code} of {_UNKNOWN}, and not with 2"
    assert not done.out, f"the message must be on standard error, and {done.out[:80]!r} is on standard output"
    done.check_message(_UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Tried:
    """An example in a folder that has its files."""

    name: str
    example: CommandExample
    folder: Path
    files: dict[str, bytes]

    def call(self, **options: Any) -> Called:
        return call(self.name, self.example.arguments, self.folder, **options)

    def check(self, done: Called) -> None:
        """Raises ``AssertionError`` where it is not what the example says."""
        what = self.what
        done.check_no_traceback(what)
        code, prints = self.example.code, self.example.prints
        assert done.code == code, f"{what} ended with {done.code} instead of {code}\n{done.err[-1500:]}"
        if isinstance(prints, str):
            assert done.out == prints, f"{what} printed something else: {_difference(done.out, prints)}"
        else:
            prints(done.out)

    @property
    def what(self) -> str:
        return f"llmk {self.name} {' '.join(self.example.arguments)}".rstrip()


def _difference(found: str, wanted: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    return f"at character {at}, {found[at : at + 60]!r} instead of {wanted[at : at + 60]!r}"


@contextmanager
def _written(spec: CommandSpec, example: CommandExample, name: str = "work") -> Iterator[_Tried]:
    with TemporaryDirectory(prefix="llmk-") as place:
        folder = Path(place) / name
        folder.mkdir()
        if example.write is not None:
            example.write(folder)
        yield _Tried(spec.name, example, folder, _files(folder))


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _with_examples(spec: CommandSpec, run: Callable[[CommandSpec, Sequence[CommandExample]], str | None]) -> str | None:
    if not spec.examples:
        raise Skip(
            "the command was not run: CommandSpec.examples names no sequence of "
            "llmk_testing.command_example.CommandExample, which say how it is called and what it prints"
        )
    examples: Sequence[CommandExample] = load_object(spec.examples)
    assert examples, f"{spec.examples} is empty"
    return run(spec, examples)


def _prints(spec: CommandSpec, examples: Sequence[CommandExample]) -> str:
    for example in examples:
        with _written(spec, example) as tried:
            tried.check(tried.call())
    return f"{len(examples)} examples"


def _again(spec: CommandSpec, examples: Sequence[CommandExample]) -> None:
    with TemporaryDirectory(prefix="llmk-") as site:
        (Path(site) / "sitecustomize.py").write_text(_TURNED)
        paths = os.pathsep.join((site, *(path for path in sys.path if path)))
        for example in examples:
            with _written(spec, example) as tried:
                tried.check(tried.call(environ={"PYTHONHASHSEED": "1"}))
                tried.check(tried.call(environ={**_ELSEWHERE, "PYTHONHASHSEED": "2", "PYTHONPATH": paths}))


def _elsewhere(spec: CommandSpec, examples: Sequence[CommandExample]) -> str:
    """In a folder whose name has characters that mean something to some."""
    moved = 0
    for example in examples:
        with _written(spec, example, "a [b] %s é") as tried:
            words = [
                str(tried.folder / word) if word and (tried.folder / word).exists() else word
                for word in example.arguments
            ]
            if words != list(example.arguments):
                moved += 1
                done = call(spec.name, words, tried.folder.parent)
                what = f"llmk {spec.name} {' '.join(words)}"
                done.check_no_traceback(what)
                assert done.code == example.code, (
                    f"{what} ended with {done.code}, not {example.code}\n{done.err[-1500:]}"
                )
    if not moved:
        raise Skip("no example has the name of a file among its arguments")
    return f"{moved} examples"


def _valued(spec: CommandSpec, examples: Sequence[CommandExample]) -> str:
    """Of options with one value of any text; some have none that is right, so what they print is not compared."""
    actions = list(_valued_actions(_parser(spec)))
    for action in actions:
        for value in _ODD_VALUES:
            with _written(spec, examples[0]) as tried:
                words = [*tried.example.arguments, f"{action.option_strings[-1]}={value}"]
                done = call(spec.name, words, tried.folder)
            what = f"llmk {spec.name} {' '.join(words)}"
            done.check_no_traceback(what)
            if done.code == 2:
                done.check_message(what)
    return f"{len(actions)} options"


def _valued_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        takes = isinstance(action, argparse._StoreAction) and action.nargs is None and not action.choices
        if takes and action.option_strings:
            yield action


def _complete(spec: CommandSpec, examples: Sequence[CommandExample]) -> None:
    """What no example has is not tried, and this says so."""
    words = {word.partition("=")[0] for example in examples for word in example.arguments}
    named = [action for action in _actions(_parser(spec)) if action.option_strings]
    lacking = [_title(action) for action in named if not words.intersection(action.option_strings)]
    if all(example.code == 0 for example in examples):
        lacking.append("an exit code other than 0")
    sizes = [len(data) for example in examples for data in _contents(spec, example).values()]
    if sizes and max(sizes) < _BIG:
        lacking.append(f"a file of {_BIG >> 10} KiB")
    if lacking:
        raise Skip(f"not tried, as no example has it: {', '.join(lacking)}")


def _stays(spec: CommandSpec, examples: Sequence[CommandExample]) -> None:
    for example in examples:
        with _written(spec, example) as tried:
            tried.call()
            now = _files(tried.folder)
            changed = [name for name, data in tried.files.items() if now.get(name) != data]
            assert not changed, f"{tried.what} changed or removed {', '.join(changed)}"


def _leaves(spec: CommandSpec, examples: Sequence[CommandExample]) -> None:
    with _written(spec, examples[0]) as tried:
        done = tried.call(is_read=False)
    what = f"{tried.what} | true"
    done.check_no_traceback(what)
    assert done.code in (141, examples[0].code), f"{what} ended with {done.code}:\n{done.err[-1500:]}"


def _damaged(spec: CommandSpec, examples: Sequence[CommandExample], *, thorough: bool) -> str:
    every = ((example, name) for example in examples for name in _contents(spec, example))
    codes = {example.code for example in examples}
    chosen = list(every if thorough else islice(every, _FILES))
    if not chosen:
        raise Skip("no example has files")
    for number, (example, name) in enumerate(chosen):
        for how, damage in (_CUTS if number and not thorough else {**_CUTS, **_DAMAGES}).items():
            with _written(spec, example) as tried:
                damage(tried.folder / name)
                done = tried.call()
            what = f"{tried.what}, with {name} {how}"
            done.check_no_traceback(what)
            if done.code not in codes or done.code == 2:
                done.check_message(what)
            if example.whole and how in _CUTS:
                assert done.code != 0, f"{what}: it ended with success"
                done.check_message(what)
                assert Path(name).name in done.err, f"{what}: the message does not name the file:\n{done.err[-1500:]}"
    return f"{len(chosen)} files"


def _refuses(spec: CommandSpec, examples: Sequence[CommandExample]) -> str:
    every = [(example, what, make) for example in examples for what, make in example.refuses.items()]
    if not every:
        raise Skip("no example says what must be refused (CommandExample.refuses)")
    for example, wrong, make in every:
        with _written(spec, example) as tried:
            make(tried.folder)
            done = tried.call()
        what = f"{tried.what}, where {wrong}"
        done.check_no_traceback(what)
        assert done.code != 0, f"{what}: it ended with success, and printed {done.out[:300]!r}"
        done.check_message(what)
    return f"{len(every)} mistakes"


def _contents(spec: CommandSpec, example: CommandExample) -> dict[str, bytes]:
    with _written(spec, example) as tried:
        return tried.files


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _cut(path: Path, numerator: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * numerator // 4])


def _end(path: Path) -> None:
    path.write_bytes(path.read_bytes().rstrip()[:-1])


_CUTS: dict[str, Callable[[Path], object]] = {
    "cut after a quarter": partial(_cut, numerator=1),
    "cut in half": partial(_cut, numerator=2),
    "without its last character": _end,
    "with zeros behind its end": lambda path: path.write_bytes(path.read_bytes() + bytes(8)),
}
"""What no file is that says how long it is."""
_DAMAGES: dict[str, Callable[[Path], object]] = {
    "absent": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "of one byte": lambda path: path.write_bytes(b"{"),
    "a folder": _as_folder,
    "of random bytes": lambda path: path.write_bytes(bytes((73 * n * n + 41 * n) % 256 for n in range(4096))),
    "of a JSON text that is no object": lambda path: path.write_bytes(b"[1, null]"),
}

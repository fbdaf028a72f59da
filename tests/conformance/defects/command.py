"""A command that adds up the numbers of files, and ways to get one wrong."""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, NoReturn

from defects import Defect
from llmk.api import LlmkError
from llmk_testing.command_example import CommandExample


class Good:
    """``llmk add-up FILE``: a JSON list of numbers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path, help="a list of numbers")
        parser.add_argument("--share", metavar="N", type=int, default=100, help="percent (%%) of the sum (%(default)s)")

    def run(self, args: argparse.Namespace) -> int:
        numbers = self.read(args.file)
        self.show(
            f"{len(numbers)} numbers here, {args.share} percent of their sum: {sum(numbers) * args.share / 100:g}"
        )
        return 0 if numbers else 1

    def read(self, file: Path) -> list[float]:
        try:
            numbers = json.loads(file.read_bytes())
            return [float(number) for number in numbers]
        except (OSError, ValueError, TypeError) as error:
            raise LlmkError(f"{file} has no list of numbers: {error}", hint="name another file") from error

    def show(self, text: str) -> None:
        print(text)


class NeedsArgument(Good):
    def __init__(self, context: Any) -> None:
        self.context = context


class AddsOnce(Good):
    is_added = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        if not self.is_added:
            super().add_arguments(parser)
        self.is_added = True


class WithoutHelp(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--more", action="store_true")


class Percent(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--more", action="store_true", help="100% more")


class TakesHelp(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("-h", "--host", help="where")


class TakesDebug(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--debug", dest="verbose", action="store_true", help="say more")


class TakesRun(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--run", default="all", help="which run")


class Warns(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        print("add-up is deprecated", file=sys.stderr)


class NeedsTorch(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        import torch

        super().add_arguments(parser)
        parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads (%(default)s)")


class OwnErrors(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        def error(message: str) -> NoReturn:
            raise RuntimeError(message)

        super().add_arguments(parser)
        parser.error = error  # type: ignore[method-assign]


class PrintsFirst(Good):
    def run(self, args: argparse.Namespace) -> int:
        print(f"Reading {args.file}")
        return super().run(args)


class AlwaysSuccess(Good):
    def run(self, args: argparse.Namespace) -> int:
        super().run(args)
        return 0


class Wraps(Good):
    def show(self, text: str) -> None:
        print(textwrap.fill(text, int(os.environ.get("COLUMNS", "80"))))


class Counts(Good):
    def show(self, text: str) -> None:
        counter = Path("runs.txt")
        runs = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(runs + 1))
        print(text if not runs else f"{text} (run {runs + 1})")


class Rewrites(Good):
    def read(self, file: Path) -> list[float]:
        numbers = super().read(file)
        file.write_text(json.dumps(sorted(numbers)))
        return numbers


class OwnPipe(Good):
    def show(self, text: str) -> None:
        try:
            print(text, flush=True)
        except OSError as error:
            raise RuntimeError("the output is gone") from error


class Unchecked(Good):
    def read(self, file: Path) -> list[float]:
        return [float(number) for number in json.loads(file.read_bytes())]


class OnlyAbsent(Good):
    def read(self, file: Path) -> list[float]:
        if not file.exists():
            raise LlmkError(f"{file} is not there")
        try:
            return [float(number) for number in json.loads(file.read_text())]
        except ValueError as error:
            raise LlmkError(f"{file} has no numbers") from error


class TakesCut(Good):
    def read(self, file: Path) -> list[float]:
        try:
            return super().read(file)
        except LlmkError:
            parts = file.read_bytes().decode(errors="replace").strip("[").split(",") if file.is_file() else []
            return [float(part) for part in parts if part.strip().isdecimal()] or super().read(file)


class TakesMore(Good):
    def read(self, file: Path) -> list[float]:
        if file.is_file():
            file = Path(shutil.copy(file, Path(tempfile.mkdtemp()) / file.name))
            file.write_bytes(file.read_bytes().rstrip(b"\0"))
        return super().read(file)


class SkipsTexts(Good):
    def read(self, file: Path) -> list[float]:
        try:
            return super().read(file)
        except LlmkError:
            found = json.loads(file.read_bytes()) if file.is_file() and b"]" in file.read_bytes() else None
            return [each for each in found if isinstance(each, int)] if isinstance(found, list) else super().read(file)


class Nameless(Good):
    def read(self, file: Path) -> list[float]:
        try:
            return super().read(file)
        except LlmkError as error:
            raise LlmkError("no list of numbers") from error


class Globs(Good):
    def read(self, file: Path) -> list[float]:
        return super().read(Path((glob.glob(str(file)) or [file.parent / "nothing"])[0]))


class ReadsFirst(Good):
    def read(self, file: Path) -> list[float]:
        first = Path(os.listdir(file.parent)[0])
        return super().read(first if first.suffix == ".json" else file)


class TextShare(Good):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path, help="a list of numbers")
        parser.add_argument("--share", metavar="N", default=100, help="percent (%%) of the sum (%(default)s)")


class Silent(Good):
    def run(self, args: argparse.Namespace) -> int:
        try:
            return super().run(args)
        except LlmkError:
            return 3


def write(folder: Path) -> None:
    (folder / "some.json").write_text("[40, 1, 7, 2, 30, 20]")


def write_two(folder: Path) -> None:
    """One more than the command reads."""
    write(folder)
    (folder / "zeros.json").write_text("[0, 0]")


def write_none(folder: Path) -> None:
    (folder / "none.json").write_text("[]")


def write_large(folder: Path) -> None:
    (folder / "large.json").write_text(json.dumps([1] * 70_000))


def write_text(folder: Path) -> None:
    (folder / "some.json").write_text('[40, "forty"]')


def check_half(text: str) -> None:
    assert text.endswith(": 50\n"), text


EXAMPLES = (
    CommandExample(
        arguments=["some.json"],
        write=write,
        prints="6 numbers here, 100 percent of their sum: 100\n",
        whole=True,
        refuses={"a number is a text": write_text},
    ),
    CommandExample(
        arguments=["large.json"], write=write_large, prints="70000 numbers here, 100 percent of their sum: 70000\n"
    ),
    CommandExample(arguments=["some.json", "--share", "50"], write=write_two, prints=check_half),
    CommandExample(
        arguments=["none.json"], write=write_none, prints="0 numbers here, 100 percent of their sum: 0\n", code=1
    ),
)

FEW = EXAMPLES[:1]

MADE = "it is made without arguments"
PRINT = "examples print what they say"
AGAIN = "they do so again"
DAMAGED = "damaged files are named"
DEFECTS = (
    Defect("needs", "its constructor needs an argument", NeedsArgument, MADE),
    Defect("once", "options are added to the first parser alone", AddsOnce, "its options are the same each time"),
    Defect("no help", "an option has no help", WithoutHelp, "have help that can be shown"),
    Defect("percent", "the help has a percent sign", Percent, "have help that can be shown"),
    Defect("takes -h", "an option is called -h", TakesHelp, "no option has a name that llmk takes"),
    Defect("takes --debug", "an option is called as one of llmk's", TakesDebug, "no option has a name that llmk takes"),
    Defect("takes run", "an option replaces what is run", TakesRun, "no option has a name that llmk takes"),
    Defect("warns", "the help comes with a warning", Warns, "its help is printed without torch"),
    Defect("torch", "the help needs torch", NeedsTorch, "its help is printed without torch"),
    Defect("own errors", "an unknown option raises", OwnErrors, "an option that there isn't"),
    Defect("prints first", "a message precedes the output", PrintsFirst, PRINT),
    Defect("success", "the exit code is 0 in any case", AlwaysSuccess, PRINT),
    Defect("wraps", "lines are wrapped in a pipe, too", Wraps, AGAIN),
    Defect("counts", "a second run prints something else", Counts, AGAIN),
    Defect("rewrites", "what is read is written sorted", Rewrites, "files of examples stay as they are"),
    Defect("pipe", "a reader that left is an internal error", OwnPipe, "a reader that leaves early"),
    Defect("unchecked", "an absent file is an internal error", Unchecked, DAMAGED),
    Defect("absent", "a folder in a file's place is an internal error", OnlyAbsent, DAMAGED),
    Defect("cut", "half of a file is taken for a file", TakesCut, DAMAGED),
    Defect("more", "zeros behind the end of a file are taken", TakesMore, DAMAGED),
    Defect("nameless", "the message does not say which file is damaged", Nameless, DAMAGED),
    Defect("skips", "what is wrong in a file is left out", SkipsTexts, "what examples say must be refused is"),
    Defect("globs", "brackets in a path are taken for a pattern", Globs, "by their whole paths"),
    Defect("first", "the first file that a folder lists is read", ReadsFirst, AGAIN),
    Defect("text", "a number is left a text", TextShare, "options take any value"),
    Defect("silent", "an error is an exit code alone", Silent, DAMAGED),
)

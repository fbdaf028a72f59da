"""``llmk imatrix FILE``: how important the inputs of each tensor were, by an importance matrix of llama.cpp.

The file (``imatrix.dat``) has little-endian numbers: how many tensors; of each a name behind its length, for how many
chunks it was called, and sums of squared inputs behind their number; at the end how many chunks there were, and the
name of the text that was read, behind its length.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from llmk.api import LlmkError

LAYER = re.compile(r"blk\.([0-9]{1,9})\.")
HINT = "write it again with llama-imatrix --output-format dat"


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of a tensor's inputs: mean squares over all calls; none of those that were never called."""

    name: str
    calls: int
    inputs: int
    mean: float | None
    most: float | None

    @property
    def layer(self) -> int | None:
        """The number of its layer; None outside of layers."""
        found = LAYER.match(self.name)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Matrix:
    """What a file says. ``text`` is the name of the text that was read."""

    tensors: list[Importance]
    chunks: int
    text: str


class Reader:
    """Reads a file's parts in order; what is missing is said before memory is taken for it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._left = os.fstat(file.fileno()).st_size

    def number(self, what: str) -> int:
        """A number that is not negative."""
        (found,) = struct.unpack("<i", self.some(4, what))
        if found < 0:
            self.refuse(f"{what} is {found}")
        return int(found)

    def some(self, size: int, what: str) -> bytes:
        """So many bytes."""
        if size > self._left:
            self.refuse(f"it is cut off in {what}")
        self._left -= size
        return self._file.read(size)

    def text(self, what: str) -> str:
        """A text behind its length."""
        found = self.some(self.number(f"the length of {what}"), what)
        try:
            return found.decode()
        except UnicodeDecodeError:
            self.refuse(f"{what} is no text")
            raise

    def end(self) -> None:
        """Nothing may follow."""
        if self._left:
            self.refuse(f"{self._left} bytes follow its end")

    def refuse(self, why: str) -> None:
        """Says what is wrong with the file."""
        raise LlmkError(f"{self._path} is no importance matrix: {why}", hint=HINT)


class ShowMatrix:
    """Follows ``llmk.api.Command``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options."""
        parser.add_argument("file", metavar="FILE", type=Path, help="an importance matrix, such as imatrix.dat")
        parser.add_argument("--sort", choices=sorted(ORDERS), default="name", help="the order (%(default)s)")
        parser.add_argument("--top", metavar="N", type=positive, help="the first N alone")
        parser.add_argument("--match", metavar="PATTERN", help="tensors with such names, for example '*ffn_down*'")
        parser.add_argument("--layers", action="store_true", help="a line for each layer, not for each tensor")
        parser.add_argument("--json", action="store_true", help="lines of JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Prints a line for each tensor or layer. Returns 1 where there is none."""
        matrix = read(args.file)
        found = [one for one in matrix.tensors if args.match is None or fnmatchcase(one.name, args.match)]
        if args.layers:
            found = list(by_layer(found))
        found = sorted(found, key=ORDERS[args.sort])[: args.top]
        for one in found if args.json else ():
            print(json.dumps(asdict(one)))
        if found and not args.json:
            print(f"{printable(matrix.text)}, {matrix.chunks} chunks")
            print("\n".join(table(found)))
        return 0 if found else 1


def read(path: Path) -> Matrix:
    """The matrix of a file. Raises LlmkError, which is printed without a traceback."""
    try:
        with path.open("rb") as file:
            reader = Reader(path, file)
            tensors = list(tensors_of(reader))
            matrix = Matrix(tensors, reader.number("the number of chunks"), reader.text("the name of the text"))
            reader.end()
    except OSError as error:
        raise LlmkError(f"{path} can't be read: {error.strerror}", hint="name a file") from error
    return matrix


def tensors_of(reader: Reader) -> Iterator[Importance]:
    """The tensors, in the file's order."""
    names = set()
    for number in range(1, reader.number("the number of tensors") + 1):
        name = reader.text(f"the name of tensor {number}")
        if not name.isprintable() or not name or name in names:
            reader.refuse(f"the name of tensor {number} is {name!r}")
        names.add(name)
        calls, inputs = reader.number(f"the calls of {name}"), reader.number(f"the number of inputs of {name}")
        sums = array("f")
        sums.frombytes(reader.some(4 * inputs, f"the inputs of {name}"))
        if sys.byteorder == "big":
            sums.byteswap()
        if not all(math.isfinite(value) and value >= 0 for value in sums):
            reader.refuse(f"an input of {name} has a sum of squares that is none")
        known = calls > 0 and inputs > 0
        mean = math.fsum(sums) / inputs / calls if known else None
        yield Importance(name, calls, inputs, mean, max(sums) / calls if known else None)


def by_layer(tensors: Iterable[Importance]) -> Iterator[Importance]:
    """The tensors of each layer as one, whose mean is over all inputs; those outside of layers as they are."""
    layers: dict[int, list[Importance]] = {}
    for one in tensors:
        if one.layer is None:
            yield one
        else:
            layers.setdefault(one.layer, []).append(one)
    for number, parts in layers.items():
        known = [part for part in parts if part.mean is not None]
        inputs = sum(part.inputs for part in known)
        mean = math.fsum((part.mean or 0) * part.inputs for part in known) / inputs if known else None
        most = max((part.most or 0 for part in known), default=None)
        calls, all_inputs = max(part.calls for part in parts), sum(part.inputs for part in parts)
        yield Importance(f"layer {number}", calls, all_inputs, mean, most)


def by_name(one: Importance) -> list[str | int]:
    """Numbers in names as numbers: 2 before 10."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split("([0-9]{1,9})", one.name))]


ORDERS: dict[str, Callable[[Importance], object]] = {
    "name": by_name,
    "mean": lambda one: (-(-1 if one.mean is None else one.mean), by_name(one)),
    "most": lambda one: (-(-1 if one.most is None else one.most), by_name(one)),
}
"""The orders of lines; the most important first, and what was never called last."""


def table(found: list[Importance]) -> Iterator[str]:
    """Lines of columns."""
    rows = [("tensor", "calls", "inputs", "mean", "most")]
    for one in found:
        mean, most = ("-" if value is None else f"{value:.5g}" for value in (one.mean, one.most))
        rows.append((printable(one.name), str(one.calls), str(one.inputs), mean, most))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for name, *numbers in rows:
        columns = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([name.ljust(widths[0]), *columns])


def printable(text: str) -> str:
    """A text that terminals of any locale can show."""
    return text.encode("ascii", "backslashreplace").decode()


def positive(text: str) -> int:
    """The number of an option."""
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)

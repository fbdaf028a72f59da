"""``llmk weights FOLDER``: what tensors a checkpoint has, read from the headers of its safetensors files alone, and
whether the files are whole."""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from llmk.api import CheckpointError
from llmk.api.checkpoint import CheckpointFile, files_in, parse_json

LONGEST_HEADER = 100_000_000
"""As in the safetensors library."""
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor: bytes ``start`` to ``stop - 1`` of the data of ``file``."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def elements(self) -> int:
        """Elements; a scalar has one."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.stop - self.start


class Weights:
    """The command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments."""
        parser.add_argument("folder", metavar="FOLDER", type=Path, help="a checkpoint's folder")
        parser.add_argument("--match", metavar="GLOB", default="*", help="tensors of these names, such as '*.bias'")
        parser.add_argument("--by", choices=("tensor", "dtype", "file", "layer"), default="tensor", help="sums")
        parser.add_argument("--top", type=_count, metavar="N", help="the N largest only")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Prints the table. Returns 1 where nothing matches."""
        entries = read_folder(args.folder)
        found = [entry for entry in entries if fnmatch.fnmatchcase(entry.name, args.match)]
        rows = list(_rows(found, args.by))
        if args.top is not None:
            rows = sorted(rows, key=lambda row: -row["bytes"])[: args.top]
        total = {
            "tensors": len(found),
            "elements": sum(entry.elements for entry in found),
            "bytes": sum(entry.num_bytes for entry in found),
        }
        if args.json:
            print(json.dumps({"rows": rows, "total": total}))
        else:
            _print(rows, total)
        return 0 if found else 1


def read_folder(folder: Path) -> list[Entry]:
    """The tensors of all files, in the natural order of their names. Raises CheckpointError for a file that is not
    whole, a name in two files, and an index that disagrees."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", hint="name the folder that has config.json")
    indices = files_in(folder, "*.safetensors.index.json")
    files = files_in(folder, "*.safetensors")
    if not files:
        raise CheckpointError(f"{folder} has no safetensors files", hint="check that the download is complete")
    found: dict[str, Entry] = {}
    for file in files:
        for entry in read_file(file):
            if entry.name in found:
                other = found[entry.name].file
                raise CheckpointError(f"{entry.name!r} is in {other} and in {file.name}", hint="remove one of them")
            found[entry.name] = entry
    for index in indices:
        _check_index(index, found)
    return sorted(found.values(), key=lambda entry: _natural(entry.name))


def read_file(file: CheckpointFile) -> Iterator[Entry]:
    """The tensors of one file, by its header."""
    size = file.size
    with file.open() as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 <= length <= min(LONGEST_HEADER, size - 8):
            raise _broken(file, "its header is cut off")
        text = stream.read(length)
    try:
        header = parse_json(text.decode("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise _broken(file, "its header is no JSON") from error
    if not isinstance(header, dict):
        raise _broken(file, "its header is no object")
    entries = [_entry(file, name, fields) for name, fields in header.items() if name != "__metadata__"]
    at = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != at:
            raise _broken(file, f"the data of {entry.name!r} starts at byte {entry.start:,}, not at {at:,}")
        at = entry.stop
    if at != size - 8 - length:
        raise _broken(file, f"it has {size - 8 - length:,} bytes of data, and its header names {at:,}")
    yield from entries


def _entry(file: CheckpointFile, name: str, fields: Any) -> Entry:
    try:
        dtype, shape, (start, stop) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(file, f"{name!r} lacks a dtype, a shape or offsets") from error
    whole = all(type(each) is int and each >= 0 for each in (*shape, start, stop))
    if not whole or not isinstance(dtype, str) or stop < start:
        raise _broken(file, f"{name!r} has invalid sizes")
    bits = BITS.get(dtype)
    if bits is not None and prod(shape) * bits != (stop - start) * 8:
        raise _broken(file, f"{name!r} has {stop - start:,} bytes, which are no {dtype} {list(shape)}")
    return Entry(name, file.name, dtype, shape, start, stop)


def _check_index(index: CheckpointFile, found: dict[str, Entry]) -> None:
    named = index.read_json().get("weight_map", {})
    for name, file in named.items() if isinstance(named, dict) else ():
        if name not in found or found[name].file != file:
            raise CheckpointError(f"{index} says that {name!r} is in {file}, where it is not", hint="download it again")


def _rows(entries: Iterable[Entry], by: str) -> Iterator[dict[str, Any]]:
    if by == "tensor":
        for entry in entries:
            fields = asdict(entry)
            yield {**fields, "shape": list(entry.shape), "elements": entry.elements, "bytes": entry.num_bytes}
        return
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for entry in entries:
        key = {"dtype": entry.dtype, "file": entry.file, "layer": _layer(entry.name)}[by]
        sums[key] = [a + b for a, b in zip(sums[key], (1, entry.elements, entry.num_bytes), strict=True)]
    for key in sorted(sums, key=_natural):
        tensors, elements, num_bytes = sums[key]
        yield {"name": key, "tensors": tensors, "elements": elements, "bytes": num_bytes}


def _layer(name: str) -> str:
    """The name up to the first number (``model.layers.7``); of others, ``(rest)``."""
    found = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", name)
    return found.group() if found else "(rest)"


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _print(rows: list[dict[str, Any]], total: dict[str, int]) -> None:
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        what = f"{row['dtype']} {row['shape']}" if "dtype" in row else f"{row['tensors']:,} tensors"
        print(f"{row['name']:<{width}}  {row['bytes']:>15,}  {what}")
    print(f"{total['tensors']:,} tensors, {total['elements']:,} elements, {total['bytes']:,} bytes")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return value


def _broken(file: CheckpointFile, why: str) -> CheckpointError:
    return CheckpointError(f"{file} is not a whole safetensors file: {why}", hint="download or copy the file again")

"""``llmk gguf-info FILE``: what a GGUF file says of itself, and what its tensors take."""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from llmk_lagoon.stork_gguf import Array, Tensor, Value, read_header

_LONGEST = 60
"""Characters of a text that are shown."""


class GgufInfo:
    """Follows ``llmk.api.Command``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options."""
        parser.add_argument("file", metavar="FILE", type=Path, help="a GGUF file")
        parser.add_argument("--metadata", action="store_true", help="print keys and values of the metadata")
        parser.add_argument("--tensors", action="store_true", help="print each tensor")
        parser.add_argument("--match", metavar="GLOB", default="*", help="only keys and tensors whose name matches")
        parser.add_argument("--by", choices=("name", "size"), default="name", help="the order of tensors (%(default)s)")
        parser.add_argument("--top", metavar="N", type=_count, help="only the first N tensors")

    def run(self, args: argparse.Namespace) -> int:
        """Prints a summary, or what the options ask for. Returns 1 where nothing matches."""
        header = read_header(args.file)
        tensors = [tensor for tensor in header.tensors if fnmatchcase(tensor.name, args.match)]
        keys = [key for key in header.metadata if fnmatchcase(key, args.match)]
        shown = sorted(tensors, key=by_size if args.by == "size" else by_name)[: args.top]
        if args.metadata:
            for key in sorted(keys, key=natural):
                print(f"{_name(key)} = {_text(header.metadata[key])}")
        if args.tensors:
            for tensor in shown:
                shape = " x ".join(map(str, tensor.shape))
                print(f"{_name(tensor.name)}: {tensor.type}, {shape}, {tensor.bytes} bytes")
        if not args.metadata and not args.tensors:
            architecture = header.metadata.get("general.architecture", "unknown")
            print(f"GGUF version {header.version}, architecture {_text(architecture)}, {len(header.metadata)} keys")
            _print_types(shown)
        return 0 if shown or (args.metadata and keys) else 1


def natural(name: str) -> list[tuple[int, str]]:
    """A key by which numbers in names are in the order of their values."""
    parts = re.split("([0-9]+)", name)
    digits = [part.lstrip("0") for part in parts]
    return [(len(digits[n]), digits[n]) if n % 2 else (0, part) for n, part in enumerate(parts)]


def by_name(tensor: Tensor) -> tuple[list[tuple[int, str]], str]:
    """The order by name."""
    return natural(tensor.name), tensor.name


def by_size(tensor: Tensor) -> tuple[int, list[tuple[int, str]], str]:
    """The order by size, the largest first."""
    return -tensor.bytes, *by_name(tensor)


def _print_types(tensors: Iterable[Tensor]) -> None:
    """A line for each type of tensor, and one for all."""
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.type].append(tensor)
        groups["all"].append(tensor)
    for name, group in sorted(groups.items(), key=lambda item: (item[0] == "all", item[0])):
        elements, size = sum(tensor.elements for tensor in group), sum(tensor.bytes for tensor in group)
        bits = f"{8 * size / elements:.2f} bits each" if elements else "none"
        print(f"{name}: {len(group)} tensors, {elements} elements, {size} bytes, {bits}")


def _text(value: Value) -> str:
    """A value, in ASCII alone: what the terminal can't show must not end the command."""
    if isinstance(value, Array):
        more = ", ..." if value.length > len(value.first) else ""
        return f"[{', '.join(map(_text, value.first))}{more}] ({value.length})"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _LONGEST else value[:_LONGEST] + "...")
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _name(name: str) -> str:
    return name if name.isascii() and name.isprintable() else json.dumps(name)


def _count(text: str) -> int:
    """A whole number from 1."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)

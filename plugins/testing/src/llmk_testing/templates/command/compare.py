"""Prints in what the ``config.json`` of two checkpoints differ."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmk.api import CheckpointError, CheckpointFile

ABSENT = "(absent)"


class Compare:
    """Follows ``llmk.api.Command``. It is imported when it is called, and imports no torch."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Each has help. argparse refuses what it doesn't know, with exit code 2."""
        parser.add_argument("one", metavar="ONE", type=Path, help="a checkpoint's folder")
        parser.add_argument("other", metavar="OTHER", type=Path, help="the folder of another one")
        parser.add_argument("--json", action="store_true", help="print a JSON object, with both values of each key")

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0 if they are equal and 1 if not, as diff does. Raises CheckpointError, which llmk prints in one
        message. What is printed is the result alone: values are escaped, so that they are printable anywhere."""
        one, other = dict(_flat(_config(args.one))), dict(_flat(_config(args.other)))
        names = sorted(name for name in one | other if one.get(name, ABSENT) != other.get(name, ABSENT))
        pairs = {name: (one.get(name, ABSENT), other.get(name, ABSENT)) for name in names}
        if args.json:
            print(
                json.dumps(
                    {
                        name: [json.loads(value) if value != ABSENT else None for value in pair]
                        for name, pair in pairs.items()
                    }
                )
            )
        else:
            for name, (old, new) in pairs.items():
                print(f"{name}: {old} -> {new}")
        return 1 if pairs else 0


def _config(folder: Path) -> Mapping[str, Any]:
    """The config of a checkpoint. ``CheckpointFile`` refuses what is no JSON object, and names the file."""
    file = CheckpointFile(folder, "config.json")
    if not file.is_there:
        raise CheckpointError(f"{file} does not exist", hint="name the folder of a checkpoint")
    return file.read_json()


def _flat(config: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, str]]:
    """The values, as JSON, by their path; the keys of a path are quoted where they have odd characters."""
    for key, value in config.items():
        name = inside + (key if key.isascii() and key.isidentifier() else json.dumps(key))
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, json.dumps(value, sort_keys=True)

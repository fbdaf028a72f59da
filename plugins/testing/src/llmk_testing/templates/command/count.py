"""``llmk acme-count FILE``: counts the prompts of a file of lines of JSON, such as ``{"prompt": "Why?"}``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from llmk.api import LlmkError


class Count:
    """Follows ``llmk.api.Command``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options."""
        parser.add_argument("file", metavar="FILE", type=Path, help="lines of JSON, each with a prompt")
        parser.add_argument("--shortest", metavar="N", type=int, default=1, help="characters at least (%(default)s)")

    def run(self, args: argparse.Namespace) -> int:
        """Prints a line. Returns 1 where there is none."""
        lengths = [length for length in read(args.file) if length >= args.shortest]
        print(f"{len(lengths)} prompts, {sum(lengths)} characters")
        return 0 if lengths else 1


def read(file: Path) -> Iterator[int]:
    """The prompts' lengths. Raises LlmkError, which is printed without a traceback."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LlmkError(f"{file} can't be read: {error}", hint="name a file of lines of JSON") from error
    for number, line in enumerate(lines, 1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, TypeError, KeyError) as error:
            raise LlmkError(f"line {number} of {file} is no JSON object with a prompt", hint="correct it") from error
        if not isinstance(prompt, str):
            raise LlmkError(f"the prompt in line {number} of {file} is no text", hint="correct it")
        yield len(prompt)

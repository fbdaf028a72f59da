"""Examples for the conformance kit: how the command is called, the files that it reads, and what it prints.

What no example has is not tried: each option, an exit code other than 0, a large file, and what must be refused.
"""

from __future__ import annotations

import json
from pathlib import Path

from llmk_testing.command_example import CommandExample


def write(folder: Path) -> None:
    """Twelve prompts, of 1 to 12 characters."""
    lines = [json.dumps({"prompt": "x" * size}) for size in range(1, 13)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))


def write_large(folder: Path) -> None:
    """More than is read at once."""
    (folder / "large.jsonl").write_text('{"prompt": "Why?"}\n' * 10_000)


def write_number(folder: Path) -> None:
    """A line that is wrong."""
    (folder / "prompts.jsonl").write_text('{"prompt": "Why?"}\n{"prompt": 7}\n')


COUNT = (
    CommandExample(
        arguments=["prompts.jsonl"],
        write=write,
        prints="12 prompts, 78 characters\n",
        whole=True,
        refuses={"a prompt is a number": write_number},
    ),
    CommandExample(arguments=["prompts.jsonl", "--shortest", "11"], write=write, prints="2 prompts, 23 characters\n"),
    CommandExample(
        arguments=["prompts.jsonl", "--shortest", "13"], write=write, prints="0 prompts, 0 characters\n", code=1
    ),
    CommandExample(arguments=["large.jsonl"], write=write_large, prints="10000 prompts, 40000 characters\n"),
)

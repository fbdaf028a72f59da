"""Wraps Markdown at 100 columns: paragraphs and list items. Code, tables, headings and comments stay as they are.

``tools/pages.py --write`` does it for every page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
ROOT = Path(__file__).resolve().parent.parent
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "*/README.md",
    "plugins/*/README.md",
    "models/training/README.md",
    "benchmarks/*/README.md",
)
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_FENCE = re.compile(r"\s*(```|~~~)")
_VERBATIM = re.compile(r"\s*(?:#|\||<!--|---|$)|\*\*\w+:\*\*\s*$")
_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_MARKER = re.compile(r" (?=(?:[-+*>#|=]+|\d+[.)])(?: |$))")
"""A space before something that would be a list item, heading, … at the start of a line."""


def documents() -> list[Path]:
    """Every page of the documentation, wherever in the repository it lies."""
    return sorted({file for pattern in PATTERNS for file in ROOT.glob(pattern)})


def wrap(text: str) -> str:
    """``text`` with its paragraphs and list items wrapped."""
    return "\n".join(line for block in _blocks(text.split("\n")) for line in block)


def too_long(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of lines over the width that could be broken."""
    unbreakable = set(wrap(text).split("\n"))
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > WIDTH and line not in unbreakable:
            yield number, line


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Consecutive lines that belong together, wrapped where they are prose."""
    position, listed = 0, False
    while position < len(lines):
        start, line = position, lines[position]
        position += 1
        if _FENCE.match(line):
            while position < len(lines) and not _FENCE.match(lines[position]):
                position += 1
            position += 1
            yield lines[start:position]
            continue
        indented_code = line.startswith("    ") and not listed
        if _VERBATIM.match(line) or indented_code:
            listed = listed and (not line or line.startswith(" "))
            yield [line]
            continue
        item = _ITEM.match(line)
        listed = bool(item) or (listed and line.startswith(" "))
        while not lines[position - 1].endswith("  ") and position < len(lines) and _goes_on(lines[position]):
            position += 1
        first = item[0] if item else re.match(r"\s*", line)[0]  # type: ignore[index]
        yield _fill(" ".join(lines[start:position])[len(first) :], first, " " * len(first))


def _goes_on(line: str) -> bool:
    """Whether a line continues the paragraph above it."""
    return not (_VERBATIM.match(line) or _ITEM.match(line) or _FENCE.match(line))


def _fill(text: str, first: str, indent: str) -> list[str]:
    """``text`` in lines. Code spans stay whole, and no line starts with what would be a marker."""
    hard_break = "  " if text.endswith("  ") else ""
    glued = _CODE_SPAN.sub(lambda found: found[0].replace(" ", "\0"), " ".join(text.split()))
    filled = textwrap.wrap(
        _MARKER.sub("\0", glued),
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(line.replace("\0", " ") for line in filled[:-1]), filled[-1].replace("\0", " ") + hard_break]

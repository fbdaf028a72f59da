"""Plain text tables and lines, of any width or of a terminal's."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

_GAP = "  "
_LEAST = 8
"""Characters to which a column may be narrowed, in favour of others."""


def render_rows(header: Sequence[str], rows: Sequence[Sequence[str]], width: int = 0) -> str:
    """A table. ``width``: columns of the terminal, into which cells are wrapped; 0: each row is one line."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    if width:
        _narrow(widths, width - len(_GAP) * (len(widths) - 1))
    lines = [line for row in table for line in _lines(row, widths, wraps=bool(width))]
    rule = _GAP.join("-" * each for each in widths)
    first = len(_lines(table[0], widths, wraps=bool(width)))
    return "\n".join([*lines[:first], rule, *lines[first:]])


def render_pairs(pairs: Sequence[tuple[str, str]], width: int = 0) -> str:
    """Lines of a label and a text, which is wrapped next to it."""
    label = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(wrapped(f"{name:{label}}{_GAP}{text}", width, label + len(_GAP)) for name, text in pairs)


def wrapped(text: str, width: int = 0, indent: int = 4) -> str:
    """``text``, each line of which is wrapped, with an ``indent`` behind its first line."""
    if not width:
        return text
    lines: list[str] = []
    for line in text.splitlines():
        deep = len(line) - len(line.lstrip()) + indent
        lines += _wrap(line, width, " " * min(deep, width // 2))
    return "\n".join(lines)


def _narrow(widths: list[int], room: int) -> None:
    """Takes from the widest columns what is too much."""
    while sum(widths) > room and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1


def _lines(row: Sequence[str], widths: Sequence[int], *, wraps: bool) -> list[str]:
    cells = [_wrap(cell, size) if wraps else [cell] for cell, size in zip(row, widths, strict=True)]
    height = max(1, *(len(cell) for cell in cells))
    columns = [[*cell, *[""] * (height - len(cell))] for cell in cells]
    sized = [[cell.ljust(size) for cell in column] for column, size in zip(columns, widths, strict=True)]
    return [_GAP.join(line).rstrip() for line in zip(*sized, strict=True)]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most ``width``. Longer words, such as ids and paths, are cut behind a dot, a dash or a slash."""
    if len(text) <= width:
        return [text]
    lead = text[: len(text) - len(text.lstrip())]
    words = (_cut(word, width - len(indent or lead)) for word in re.split(r"( +)", text.strip()))
    lines = textwrap.wrap(
        "".join(words), width, initial_indent=lead, subsequent_indent=indent or lead, break_on_hyphens=False
    )
    return lines or [""]


def _cut(word: str, width: int) -> str:
    """A word in pieces that fit, with spaces between them where it may be cut."""
    if len(word) <= width or not word.strip():
        return word
    pieces, line = [], ""
    for part in re.split(r"(?<=[._/\-,:=])", word):
        if line and len(line) + len(part) > width:
            pieces.append(line)
            line = ""
        line += part
    return " ".join([*pieces, line])

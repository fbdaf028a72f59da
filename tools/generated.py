"""Blocks of Markdown pages that are made from the code, between ``<!-- made by tools/NAME -->`` and ``<!-- end -->``.

What stands around a block is written by hand, so that a subject has one page. ``tools/pages.py`` fills them all.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wrap_docs import wrap

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- made by tools/(?P<name>[\w .]+) -->\n).*?^(<!-- end -->)$", re.M | re.S)

Maker = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and what makes each of its blocks, by the name that the block's first line has."""

    path: str
    makers: Mapping[str, Maker]

    def render(self) -> str:
        """The page with all blocks made again. Raises ValueError where blocks and makers don't belong together."""
        text = (ROOT / self.path).read_text()
        there = [found["name"] for found in BLOCK.finditer(text)]
        if sorted(there) != sorted(self.makers):
            raise ValueError(f"{self.path} has blocks for {there}, and there is something for {sorted(self.makers)}")
        return BLOCK.sub(lambda found: f"{found[1]}\n{wrap(self.makers[found['name']]().strip())}\n\n{found[3]}", text)

    def difference(self) -> str:
        """What changed since the page was written, as a unified diff; empty where nothing did."""
        committed, now = (ROOT / self.path).read_text().splitlines(), self.render().splitlines()
        return "\n".join(difflib.unified_diff(committed, now, self.path, "now", lineterm="", n=1))

    def write(self) -> None:
        """Writes the blocks again."""
        (ROOT / self.path).write_text(self.render())


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(*words: object) -> str:
    """Words as code, with commas between them; ``-`` where there are none."""
    return ", ".join(f"`{word}`" for word in words) or "-"

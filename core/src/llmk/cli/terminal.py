"""What a stream can show: how wide it is, and whether it has colours."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

_LEAST = 40
"""Columns below which nothing is made narrower."""


def width_of(stream: TextIO) -> int:
    """The terminal's columns; 0 for files and pipes, whose lines are for other programs, and stay whole."""
    return max(_LEAST, shutil.get_terminal_size().columns) if stream.isatty() else 0


class Style:
    """Marks text on a stream with colours, where that is a terminal that has them. https://no-color.org is followed.
    Without a stream, nothing is marked."""

    def __init__(self, stream: TextIO | None = None) -> None:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._on = stream is not None and stream.isatty() and not plain

    def strong(self, text: str) -> str:
        """Bold."""
        return self._mark(text, "1")

    def warning(self, text: str) -> str:
        """Yellow."""
        return self._mark(text, "33")

    def _mark(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._on and text else text

"""What the conformance kit tries a command on: how it is called, the files that it reads, and what it prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandExample:
    """``CommandSpec.examples`` names a sequence of these.

    ``arguments`` are the words after the command's name, and ``write(folder)`` writes the files that it reads below the
    working folder, to which relative paths refer. The command may change no file of these, is run more than once, and
    is also given files that are damaged. ``code`` is the exit code.
    """

    arguments: Sequence[str] = ()
    write: Callable[[Path], object] | None = None
    prints: str | Callable[[str], object] = ""
    """All of standard output; or a function that gets this, and raises AssertionError where it is wrong."""
    code: int = 0
    whole: bool = False
    """Whether the command must refuse each file that is cut in half."""

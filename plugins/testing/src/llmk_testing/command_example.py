"""What the conformance kit tries a command on: how it is called, the files that it reads, and what it prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandExample:
    """``CommandSpec.examples`` names a sequence of these.

    ``arguments`` are the words after the command's name, and ``write(folder)`` writes the files that it reads below the
    working folder, to which relative paths refer. The command may change no file of these, is run more than once, with
    other values of its options, too, and is also given files that are damaged. ``code`` is the exit code.

    What no example has is not tried: name each option in one; have an error in one; have a file of more than
    128 KiB in one, as what is read in parts shows there alone; and number things beyond ten, as 10 is before 2 among
    texts.
    """

    arguments: Sequence[str] = ()
    write: Callable[[Path], object] | None = None
    prints: str | Callable[[str], object] = ""
    """All of standard output; or a function that gets this, and raises AssertionError where it is wrong."""
    code: int = 0
    whole: bool = False
    """Whether the command must refuse, by its name, each file that is cut off anywhere, or has bytes behind its end."""
    refuses: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    """What is wrong, and a function that makes it so in the working folder: the command must name it in one message,
    with an exit code other than 0."""

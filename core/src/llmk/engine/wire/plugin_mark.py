"""What a process is doing that might never end: a note in shared memory, which survives the process that wrote it.

Code of plugins can loop, exit or crash, and then it can't say so. So the process that is about to call it marks what it
calls, and a watchdog, in a thread or in another process, reads the mark: who has been at it for how long, and, after
the process's death, who was at it last.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SIZE = 512
"""Bytes of a mark's file."""
_HEAD = struct.Struct("=QdQ")
"""Number of the note, when it was made, and how many bytes of text follow; none while nothing is marked."""
_ROOM = SIZE - _HEAD.size


@dataclass(frozen=True, slots=True)
class MarkedCall:
    """What is marked, since when by :func:`time.monotonic`, and a number that no other note of this mark has."""

    what: str
    since: float
    number: int

    @property
    def seconds(self) -> float:
        """How long it has been marked."""
        return time.monotonic() - self.since


class PluginMark:
    """A note of one writer in the file at ``path``, which is made where it isn't there.

    Readers may be in any process of this machine. Setting and clearing take about a microsecond and no lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("a+b") as file:
            if file.seek(0, 2) < SIZE:
                file.truncate(SIZE)
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._number = _HEAD.unpack_from(self._memory)[0]

    def set(self, what: str) -> None:
        """Marks ``what``, in place of what was marked before. Only its start is kept where it is long."""
        text = what.encode("utf-8", "replace")[:_ROOM]
        self._number += 1
        # Nothing is marked until the text is whole: a writer that dies in between leaves no half of one.
        _HEAD.pack_into(self._memory, 0, self._number, 0.0, 0)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, self._number, time.monotonic(), len(text))

    def clear(self) -> None:
        """Marks nothing."""
        _HEAD.pack_into(self._memory, 0, self._number, 0.0, 0)

    @contextmanager
    def at(self, what: str) -> Iterator[None]:
        """Marks ``what`` for as long as the block runs."""
        self.set(what)
        try:
            yield
        finally:
            self.clear()

    def read(self) -> MarkedCall | None:
        """What is marked, ``None`` where nothing is, or where it changes just now: then nothing hangs."""
        number, since, size = _HEAD.unpack_from(self._memory)
        text = self._memory[_HEAD.size : _HEAD.size + min(size, _ROOM)]
        if not size or (number, since, size) != _HEAD.unpack_from(self._memory):
            return None
        return MarkedCall(text.decode("utf-8", "replace"), since, number)

    def close(self) -> None:
        """Lets go of the memory; the file stays."""
        self._memory.close()

"""Calls of plugins' code in the engine's process: they are marked, so that the process's watcher knows which one does
not return, or ended it. Those in the engine's loop delay every request.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llmk.engine.wire.plugin_mark import MarkedCall, PluginMark

MARKS = "mark"
"""What names of mark files start with, in the private folder of an engine's process."""

POLICY, LOGITS_PROCESSOR = "scheduling policy", "logits processor"
SPECULATOR, GRAMMAR = "speculator", "grammar compiler"
"""What such code is called."""

_mark: PluginMark | None = None
"""This process's mark, where it is watched."""
_distrusted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Culprit:
    """A plugin's code that does not return, or did not: what it is, its id and wheel, and the sequence it was called
    for; empty: for all that use it."""

    kind: str
    id: str
    wheel: str
    request: str = ""

    def __str__(self) -> str:
        return f"the {self.kind} {self.id}" + (f" of {self.wheel}" if self.wheel else "")

    @classmethod
    def of(cls, marked: MarkedCall) -> Culprit:
        """Who is marked."""
        return cls(*marked.what.split("\n", 3))


class Call:
    """Marks a call for as long as the block runs: with the process's mark, or ``mark`` (:func:`mark_of`)."""

    __slots__ = ("_mark", "_what")

    def __init__(self, kind: str, id: str, wheel: str, request: str = "", mark: PluginMark | None = None) -> None:
        self._what = "\n".join((kind, id, wheel, request))
        self._mark = mark

    def __enter__(self) -> None:
        if (mark := self._mark or _mark) is not None:
            mark.set(self._what)

    def __exit__(self, *_: object) -> None:
        if (mark := self._mark or _mark) is not None:
            mark.clear()


class Marks:
    """Reads the marks of an engine's processes, which are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._marks: dict[Path, PluginMark] = {}

    def read(self) -> list[MarkedCall]:
        """All calls that have not returned."""
        for path in self._folder.glob(f"{MARKS}*"):
            if path not in self._marks:
                self._marks[path] = PluginMark(path)
        return [marked for mark in self._marks.values() if (marked := mark.read()) is not None]

    def close(self) -> None:
        """Lets go of them."""
        while self._marks:
            self._marks.popitem()[1].close()


def watched(path: str, distrusted: Iterable[str]) -> None:
    """Has calls of this process marked in the file ``path``. ``distrusted`` are ids of what ended engines before this
    one."""
    global _mark, _distrusted
    _mark, _distrusted = PluginMark(Path(path)), frozenset(distrusted)


def watching(rank: int) -> tuple[str, frozenset[str]] | None:
    """What :func:`watched` is to be called with in the process of a rank; ``None`` where this process is not
    watched."""
    return None if _mark is None else (f"{_mark.path}-rank{rank}", _distrusted)


def mark_of(thread: str) -> PluginMark | None:
    """A mark for another thread than the loop's; ``None`` where this process is not watched."""
    return None if _mark is None else PluginMark(Path(f"{_mark.path}-{thread}"))


def is_distrusted(id: str) -> bool:
    """Whether code of that id must not be called."""
    return id in _distrusted


def is_interrupt(error: BaseException) -> bool:
    """Whether it is a user's interruption of this process, and not of the plugin's making. Everything else that a
    plugin raises, SystemExit included, is its own failure."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN

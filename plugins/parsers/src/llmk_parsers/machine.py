"""The base state machine of all parsers: takes text, returns events, and holds back only text that may become a
marker."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from llmk.api import Event


class Markers:
    """Texts to look for in a stream.

    None may contain another, so that the marker that starts first is also complete first, and a search in a prefix of
    the text finds the same marker as in all of it. Raises ``ValueError`` otherwise.
    """

    def __init__(self, *markers: str) -> None:
        for marker in markers:
            if any(marker in other for other in markers if other is not marker):
                raise ValueError(f"marker {marker!r} is part of another one of {markers}")
        self._pattern = re.compile("|".join(map(re.escape, markers)))
        self._prefixes = frozenset(marker[:size] for marker in markers for size in range(1, len(marker)))
        self._longest = max((len(prefix) for prefix in self._prefixes), default=0)

    def search(self, text: str, at: int) -> re.Match[str] | None:
        """The first marker in ``text`` from ``at`` on."""
        return self._pattern.search(text, at)

    def hold_from(self, text: str, at: int) -> int:
        """The start of the tail of ``text`` that could become a marker; ``len(text)`` if there is none."""
        for start in range(max(at, len(text) - self._longest), len(text)):
            if text[start:] in self._prefixes:
                return start
        return len(text)


@cache
def markers(*texts: str) -> Markers:
    """:class:`Markers`, compiled once for all parsers of a dialect."""
    return Markers(*texts)


class Machine:
    """Base of the parsers.

    A subclass sets ``_state`` to a method that reads from the text and adds to ``_out``. It returns whether there may
    be more to do (it has consumed text or changed the state), or ``False`` if it needs more text. ``_text`` from
    ``_at`` on is unread; a state leaves only what it holds back, so each character is read a bounded number of times.
    """

    _state: Callable[[], bool]

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._out: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of text; returns what is now certain."""
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._run()

    def finish(self) -> list[Event]:
        """The text has ended: returns what was held back."""
        self._ended = True
        events = self._run()
        self._close()
        return events + self._taken()

    def _close(self) -> None:
        """Hook for subclasses, called after the last state has seen the end of the text."""

    def _run(self) -> list[Event]:
        while self._state():
            pass
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._out = self._out, []
        return events

    def _read_until(self, wanted: Markers) -> tuple[str, str]:
        """Consumes up to and including the next marker: the text before it, and the marker (``""``: none yet)."""
        start, found = self._at, wanted.search(self._text, self._at)
        if found:
            self._at = found.end()
            return self._text[start : found.start()], found.group()
        self._at = len(self._text) if self._ended else wanted.hold_from(self._text, start)
        return self._text[start : self._at], ""

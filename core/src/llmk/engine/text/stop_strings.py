"""Finds stop strings in text as it is generated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopStrings:
    """Finds the first of several strings to be completed in a text that comes in pieces.

    Each string has its own Knuth-Morris-Pratt automaton, whose state is how much of the string the text ends with; as
    much is held back and no more. Takes time linear in the text, for any strings.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = [(stop, _failure_table(stop)) for stop in stops if stop]
        self._states = [0] * len(self._stops)
        self._include = include
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Takes the next piece; returns the text that is certain, and the stop string that ends it if there is one.

        Where the text may not stop in this piece, one that is complete in it doesn't count, but one that starts in it
        may be completed later.
        """
        for position, char in enumerate(text, start=1):
            stop = self._advance(char)
            if stop is not None and may_stop:
                seen = self._held + text[:position]
                return seen if self._include else seen[: -len(stop)], stop
        seen = self._held + text
        certain = len(seen) - max(self._states, default=0)
        self._held = seen[certain:]
        return seen[:certain], None

    def finish(self) -> str:
        """The text has ended: returns what was held back."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Moves every automaton on; returns the longest string that ``char`` completes."""
        complete = None
        for i, (stop, failure) in enumerate(self._stops):
            state = self._states[i]
            while state and stop[state] != char:
                state = failure[state - 1]
            state += stop[state] == char
            if state == len(stop):
                complete = max(complete or "", stop, key=len)
                state = failure[state - 1]
            self._states[i] = state
        return complete


@lru_cache(maxsize=256)
def _failure_table(stop: str) -> Sequence[int]:
    """For each prefix of ``stop``, the length of the longest shorter prefix that it ends with."""
    table = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = table[length - 1]
        length += stop[i] == stop[length]
        table[i] = length
    return table

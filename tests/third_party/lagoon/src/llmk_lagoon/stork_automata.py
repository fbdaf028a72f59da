"""Automata over the bytes of UTF-8: one with choices, which is built, and one without, whose states are made when an
output first comes to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmk.api import RequestError

_LENGTHS = ((0x0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
"""The code points that UTF-8 has, by how many bytes they take; halves of surrogate pairs are none."""


class Choices:
    """An automaton with choices. States are numbers, in which a part of a text may start or end."""

    def __init__(self, most: int) -> None:
        self.steps: list[list[tuple[int, int, int]]] = []
        """For each state, the first and the last byte of a range, and the state behind them."""
        self.skips: list[list[int]] = []
        """For each state, those that are reached without a byte."""
        self._most = most

    def state(self) -> int:
        """A new state. Raises RequestError where there are too many."""
        if len(self.steps) >= self._most:
            raise RequestError(f"the grammar has more than {self._most} symbols")
        self.steps.append([])
        self.skips.append([])
        return len(self.steps) - 1

    def skip(self, start: int, end: int) -> None:
        """``end`` may follow ``start`` without a byte."""
        self.skips[start].append(end)

    def text(self, start: int, text: bytes) -> int:
        """Adds the bytes of a text behind ``start``. Returns the state behind them."""
        for byte in text:
            end = self.state()
            self.steps[start].append((byte, byte, end))
            start = end
        return start

    def characters(self, start: int, ranges: Iterable[tuple[int, int]]) -> int:
        """Adds one character of ``ranges`` of code points. Returns the state behind it."""
        end = self.state()
        for first, last in ranges:
            for least, most in _LENGTHS:
                if max(first, least) <= min(last, most):
                    low, high = chr(max(first, least)).encode(), chr(min(last, most)).encode()
                    self._sequences(start, low, high, end)
        return end

    def _sequences(self, start: int, low: bytes, high: bytes, end: int) -> None:
        """Adds the byte sequences from ``low`` to ``high``, which are equally long."""
        if len(low) == 1:
            self.steps[start].append((low[0], high[0], end))
            return
        least, most = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)
        if low[0] == high[0]:
            self._sequences(self.text(start, low[:1]), low[1:], high[1:], end)
            return
        first, last = low[0], high[0]
        if low[1:] != least:
            self._sequences(self.text(start, low[:1]), low[1:], most, end)
            first += 1
        if high[1:] != most:
            self._sequences(self.text(start, high[:1]), least, high[1:], end)
            last -= 1
        if first <= last:
            behind = self.state()
            self.steps[start].append((first, last, behind))
            self._sequences(behind, least, most, end)

    def leading_to(self, end: int) -> list[bool]:
        """Whether ``end`` can be reached from each state."""
        before: list[list[int]] = [[] for _ in self.steps]
        for state, (steps, skips) in enumerate(zip(self.steps, self.skips, strict=True)):
            for target in (*(step[2] for step in steps), *skips):
                before[target].append(state)
        leads = [False] * len(self.steps)
        leads[end] = True
        open_states = [end]
        while open_states:
            for state in before[open_states.pop()]:
                if not leads[state]:
                    leads[state] = True
                    open_states.append(state)
        return leads


class Automaton:
    """The same texts without choices: each state is a set of those of ``Choices``, and leads to the end."""

    def __init__(self, choices: Choices, start: int, end: int, most: int) -> None:
        self._choices, self._end, self._most = choices, end, most
        self._leads = choices.leading_to(end)
        if not self._leads[start]:
            raise RequestError("nothing matches the grammar")
        self._numbers: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int]] = []
        self._next: list[dict[int, int]] = []
        self.start = self._number(self._closure([start]))

    def ends(self, state: int) -> bool:
        """Whether a text may end in ``state``."""
        return self._end in self._sets[state]

    def step(self, state: int, byte: int) -> int:
        """The state behind a byte; -1 where it is not allowed."""
        following = self._next[state].get(byte)
        if following is None:
            steps = (step for member in self._sets[state] for step in self._choices.steps[member])
            targets = {target for first, last, target in steps if first <= byte <= last and self._leads[target]}
            following = self._number(self._closure(targets)) if targets else -1
            self._next[state][byte] = following
        return following

    def run(self, state: int, text: bytes) -> int:
        """The state behind a text; -1 where it is not allowed."""
        for byte in text:
            state = self.step(state, byte)
            if state < 0:
                break
        return state

    def _closure(self, states: Iterable[int]) -> frozenset[int]:
        """``states`` and those that follow them without a byte."""
        found = set(states)
        open_states: Sequence[int] = list(found)
        while open_states:
            reached = {target for state in open_states for target in self._choices.skips[state]}
            open_states = [state for state in reached - found if self._leads[state]]
            found.update(open_states)
        return frozenset(found)

    def _number(self, states: frozenset[int]) -> int:
        number = self._numbers.setdefault(states, len(self._sets))
        if number == len(self._sets):
            if number >= self._most:
                raise RequestError(f"matching the grammar takes more than {self._most} states")
            self._sets.append(states)
            self._next.append({})
        return number

"""Regular expressions in Python's syntax, and lists of texts, as automata."""

from __future__ import annotations

import json
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Sequence
from typing import Any

from llmk.api import RequestError
from llmk_lagoon.stork_automata import Choices

_LAST = 0x10FFFF
_DIGITS = [(0x30, 0x39)]
_SPACES = [(0x09, 0x0D), (0x20, 0x20)]
_WORDS = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
Ranges = list[tuple[int, int]]


def without(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The characters that are not in ``ranges``."""
    others, at = [], 0
    for first, last in sorted(ranges):
        if first > at:
            others.append((at, first - 1))
        at = max(at, last + 1)
    return [*others, (at, _LAST)] if at <= _LAST else others


_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_NOT_DIGIT: without(_DIGITS),
    sre.CATEGORY_SPACE: _SPACES,
    sre.CATEGORY_NOT_SPACE: without(_SPACES),
    sre.CATEGORY_WORD: _WORDS,
    sre.CATEGORY_NOT_WORD: without(_WORDS),
}
"""``\\d``, ``\\s`` and ``\\w`` are of ASCII."""

_FLAGS = sre.SRE_FLAG_UNICODE | sre.SRE_FLAG_ASCII | sre.SRE_FLAG_DOTALL | sre.SRE_FLAG_VERBOSE
"""Flags that can be enforced."""


def add_texts(choices: Choices, start: int, text: str) -> int:
    """Adds the texts of a JSON array. Returns the state behind them."""
    try:
        texts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the choices are not JSON: {error}") from error
    if not isinstance(texts, list) or not texts or not all(isinstance(choice, str) for choice in texts):
        raise RequestError("the choices are not a list of one or more texts")
    end = choices.state()
    behind: dict[tuple[int, int], int] = {}
    """The states behind a state and a byte: texts with the same start share them."""
    for choice in texts:
        state = start
        for byte in _encoded(choice):
            if (state, byte) not in behind:
                behind[state, byte] = choices.text(state, bytes([byte]))
            state = behind[state, byte]
        choices.skip(state, end)
    return end


def add_pattern(choices: Choices, start: int, text: str) -> int:
    """Adds a regular expression that the whole text must match. Returns the state behind it."""
    try:
        parsed = parser.parse(text)
        if parsed.state.flags & ~_FLAGS:
            raise RequestError("the regular expression has a flag that can't be enforced, such as (?i) or (?m)")
        dot_all = bool(parsed.state.flags & sre.SRE_FLAG_DOTALL)
        return _Builder(choices, dot_all).sequence(start, parsed, first=True, last=True)
    except (re.error, OverflowError) as error:
        raise RequestError(f"the regular expression is invalid: {error}") from error
    except RecursionError as error:
        raise RequestError("the regular expression is nested too deeply") from error


class _Builder:
    """Adds what Python parsed. ``first`` and ``last`` say whether an expression is at the start, or end, of all."""

    def __init__(self, choices: Choices, dot_all: bool) -> None:
        self._choices = choices
        self._any: Ranges = [(0, _LAST)] if dot_all else without([(0x0A, 0x0A)])

    def sequence(self, start: int, items: Sequence[tuple[Any, Any]], *, first: bool, last: bool) -> int:
        """Adds expressions, one behind the other. Returns the state behind them."""
        for number, (operator, argument) in enumerate(items):
            is_first, is_last = first and number == 0, last and number == len(items) - 1
            start = self._add(start, operator, argument, is_first, is_last)
        return start

    def _add(self, start: int, operator: Any, argument: Any, first: bool, last: bool) -> int:
        choices = self._choices
        if operator is sre.LITERAL:
            return choices.text(start, _encoded(chr(argument)))
        if operator is sre.NOT_LITERAL:
            return choices.characters(start, without([(argument, argument)]))
        if operator is sre.ANY:
            return choices.characters(start, self._any)
        if operator is sre.IN:
            return choices.characters(start, _ranges(argument))
        if operator is sre.SUBPATTERN and not argument[1] and not argument[2]:
            return self.sequence(start, argument[3], first=first, last=last)
        if operator is sre.BRANCH:
            end = choices.state()
            for branch in argument[1]:
                choices.skip(self.sequence(start, branch, first=first, last=last), end)
            return end
        if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return self._repeat(start, *argument)
        if operator is sre.AT and argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING) and first:
            return start
        if operator is sre.AT and argument in (sre.AT_END, sre.AT_END_STRING) and last:
            return start
        raise RequestError(f"{str(operator).lower()} can't be enforced in a regular expression")

    def _repeat(self, start: int, least: int, most: int, items: Sequence[tuple[Any, Any]]) -> int:
        """Adds ``items`` from ``least`` to ``most`` times."""
        for _ in range(least):
            start = self._once(start, items)
        if most is sre.MAXREPEAT:
            loop = self._choices.state()
            self._choices.skip(start, loop)
            self._choices.skip(self._once(loop, items), loop)
            return loop
        end = self._choices.state()
        for _ in range(most - least):
            self._choices.skip(start, end)
            start = self._once(start, items)
        self._choices.skip(start, end)
        return end

    def _once(self, start: int, items: Sequence[tuple[Any, Any]]) -> int:
        """Adds ``items`` from a state of their own, so that nothing leads back into what stands before them."""
        inner = self._choices.state()
        self._choices.skip(start, inner)
        return self.sequence(inner, items, first=False, last=False)


def _ranges(items: Sequence[tuple[Any, Any]]) -> Ranges:
    """The characters of a set, such as ``[^a-z]``."""
    ranges: Ranges = []
    for operator, argument in items:
        if operator is sre.LITERAL:
            ranges.append((argument, argument))
        elif operator is sre.RANGE:
            ranges.append(argument)
        elif operator is sre.CATEGORY:
            ranges += _CATEGORIES[argument]
    return without(ranges) if items[0][0] is sre.NEGATE else ranges


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("the grammar has half of a surrogate pair, which no text has") from error

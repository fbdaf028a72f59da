"""Requests of scheduling policies of which each look and comparison takes lines of Python, which can be counted."""

from __future__ import annotations

from typing import Any

from llmk.api import Ticket


class Name(str):
    """A text of which comparisons are counted."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


class Number(int):
    """A number of which comparisons are counted, and those of what is computed from it: of a list or tuple of them,
    too."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)

    def __lt__(self, other: int) -> bool:
        return int.__lt__(self, other)

    def __gt__(self, other: int) -> bool:
        return int.__gt__(self, other)

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __neg__(self) -> Number:
        return Number(int.__neg__(self))

    def __add__(self, other: int) -> Number:
        return _watched(int.__add__(self, other))

    def __sub__(self, other: int) -> Number:
        return _watched(int.__sub__(self, other))

    def __mul__(self, other: int) -> Number:
        return _watched(int.__mul__(self, other))

    __radd__, __rmul__ = __add__, __mul__


def _watched(result: int) -> Number:
    """What an operator returns is no number where the other one is of another type."""
    return result if result is NotImplemented else Number(result)


class Watched(Ticket):
    """A request of which looks at its attributes and comparisons are counted, which are Python here, so that also those
    count that a list makes in search of it."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

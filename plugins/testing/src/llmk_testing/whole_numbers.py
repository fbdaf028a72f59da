"""Whole numbers: JSON has one kind of number, and JavaScript writes 2.0 as 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NUMBERS = (1, 2, 0, 3, 10, -1)


def check_whole(examples: Sequence[Mapping[str, Any]], takes: Callable[[Mapping[str, Any]], bool]) -> str:
    """Of each field of the ``examples`` that has a fraction in one: where 2.0 is taken, 2 is. ``takes`` says whether
    other examples are."""
    count = 0
    for name, own in {name: one for one in reversed(examples) for name, value in one.items() if _broken(value)}.items():
        for number in _NUMBERS:
            if takes({**own, name: float(number)}):
                assert takes({**own, name: number}), f"{name} = {float(number)} is taken, and {number} is refused"
                count += 1
    return f"{count} numbers"


def _broken(value: Any) -> bool:
    return isinstance(value, float) and not value.is_integer()

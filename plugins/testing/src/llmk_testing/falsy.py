"""Values that Python takes for false: a plugin that refuses all others of a type must refuse these, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NUMBERS = (int, float)
_FALSY: tuple[tuple[Any, tuple[type, ...], tuple[Any, ...]], ...] = (
    (0, _NUMBERS, (1, -1, 2, 1000)),
    (0.0, _NUMBERS, (1.0, -1.0, 0.5, 2.5)),
    ("", (str,), ("a", "1", "true")),
    ([], (list,), ([0], [1, 2], ["a"], [1.5], [{}])),
    ({}, (dict,), ({"a": 1}, {"0": "b"}, {"": {}})),
)
"""Each with the types of good values among which it may be one, and others of its own type."""


def check_falsy(examples: Sequence[Mapping[str, Any]], takes: Callable[[Mapping[str, Any]], bool]) -> str:
    """Of each field of the ``examples``, which are valid. ``takes`` says whether others are."""
    count = 0
    for name, own in {name: one for one in reversed(examples) for name in one}.items():
        kinds = {type(one[name]) for one in examples if name in one}
        for falsy, known, others in _FALSY:
            if kinds.isdisjoint(known) and not any(takes({**own, name: other}) for other in others):
                what = f"{name} = {others[0]!r} is refused, and {falsy!r} is taken, as if it were left out"
                assert not takes({**own, name: falsy}), what
                count += 1
    return f"{count} values"

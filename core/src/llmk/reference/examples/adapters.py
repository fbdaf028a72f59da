"""The op that adds low-rank adapters."""

from __future__ import annotations

from typing import Any

from llmk.reference.op_examples import Draw, Facts, OpExamples

_NAMES = ("in_features", "out_features", "num_parts", "num_adapters", "rank")
_FACTS: tuple[Facts, ...] = tuple(
    dict(zip(_NAMES, sizes, strict=True))
    for sizes in ((128, 96, 1, 1, 8), (72, 60, 3, 3, 4), (33, 50, 2, 5, 16), (40, 24, 1, 2, 1))
)


def _add(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Tokens of all adapters, and of none; parts of unlike sizes."""
    inner, out, parts, adapters, rank = (facts[name] for name in _NAMES)
    sizes = _sizes(out, parts)
    a = draw.floats(adapters, parts, rank, inner, scale=inner**-0.5)
    b = draw.floats(adapters, out, rank)
    scale = draw.reals(adapters, parts)
    return draw.floats(rows, out), draw.floats(rows, inner), draw.whole(-1, adapters, rows), a, b, scale, sizes


def _sizes(out: int, parts: int) -> tuple[int, ...]:
    """The first part has what the others leave, as queries have more heads than keys."""
    other = out // (parts + 1)
    return out - other * (parts - 1), *[other] * (parts - 1)


ADD_ADAPTERS = OpExamples(_FACTS, _add, by_row=("y", "x", "index"), chained=True)

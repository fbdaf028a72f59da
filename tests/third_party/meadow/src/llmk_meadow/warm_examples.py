"""Arguments of the op ``smoothed_norm``."""

from __future__ import annotations

from typing import Any

from llmk.reference.op_examples import Draw, Facts, OpExamples


def arguments(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """A running mean that is not negative."""
    size = facts["size"]
    average = draw.reals(rows).square()
    return average, draw.floats(rows, size), draw.floats(size), facts["momentum"], facts["eps"]


SMOOTHED = OpExamples(
    (
        {"size": 64, "momentum": 0.9, "eps": 1e-6},
        {"size": 33, "momentum": 0.5, "eps": 1e-5},
        {"size": 1, "momentum": 0.0, "eps": 1e-6},
    ),
    arguments,
    by_row=("average", "x"),
    wide=("x",),
)

"""Examples for the conformance kit: the op's arguments, made of facts. They are used to measure kernels, too."""

from __future__ import annotations

from typing import Any

from llmk.reference.op_examples import Draw, Facts, OpExamples


def arguments(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """All positional arguments. ``floats`` are in the dtype that is tried, ``reals`` in float32."""
    size = facts["size"]
    return draw.floats(rows, size), draw.reals(1), draw.floats(size), draw.floats(size)


TANH = OpExamples(
    ({"size": 64}, {"size": 33}, {"size": 1}, {"size": 4096}),
    arguments,
    by_row=("x",),
    wide=("x",),
    leading=("x",),
    strided=("x", "weight", "bias"),
    float32=("x", "weight", "bias"),
    optional=("bias",),
)

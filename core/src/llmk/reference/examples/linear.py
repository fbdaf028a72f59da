"""Ops with a linear kernel."""

from __future__ import annotations

from typing import Any

from llmk.api import LinearQuery
from llmk.reference.examples.rows import EPS
from llmk.reference.op_examples import Draw, Facts, OpExamples


def _gated_facts(site: LinearQuery) -> tuple[Facts, ...]:
    return ({"intermediate_size": site.out_features // 2},)


def _normed_facts(site: LinearQuery) -> tuple[Facts, ...]:
    return ({"size": site.in_features},)


def _normed_gated_facts(site: LinearQuery) -> tuple[Facts, ...]:
    return ({"size": site.in_features, "intermediate_size": site.out_features // 2},)


def _rows(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return (draw.floats(rows, facts["in_features"]),)


def _normed_rows(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    size = facts["in_features"]
    return draw.floats(rows, size), draw.floats(rows, size), draw.floats(size), EPS


GATE_UP = OpExamples(_gated_facts, _rows, by_row=("x",))
NORMED_LINEAR = OpExamples(_normed_facts, _normed_rows, by_row=("x", "residual"), optional=("residual",))
NORMED_GATE_UP = OpExamples(_normed_gated_facts, _normed_rows, by_row=("x", "residual"), optional=("residual",))

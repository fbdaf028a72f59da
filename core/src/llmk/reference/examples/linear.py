"""Ops with a linear kernel."""

from __future__ import annotations

from typing import Any

from llmk.api import LinearQuery
from llmk.reference.examples.rows import PARAMETERS, eps, gated_keywords, sum_keywords
from llmk.reference.op_examples import Draw, Facts, OpExamples


def _gated_facts(site: LinearQuery) -> tuple[Facts, ...]:
    return _with_parameters({"intermediate_size": site.out_features // 2})


def _normed_facts(site: LinearQuery) -> tuple[Facts, ...]:
    return {"size": site.in_features}, {"size": site.in_features, "residual_multiplier": 0.22}


def _normed_gated_facts(site: LinearQuery) -> tuple[Facts, ...]:
    facts = {"size": site.in_features, "intermediate_size": site.out_features // 2}
    return *_with_parameters(facts), {**facts, "residual_multiplier": 0.22}


def _with_parameters(facts: Facts) -> tuple[Facts, ...]:
    """With an activation without parameters, and with them."""
    return facts, {**facts, **PARAMETERS}


def _normed_keywords(draw: Draw, facts: Facts) -> Facts:
    return {**gated_keywords(draw, facts), **sum_keywords(draw, facts)}


def _rows(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return (draw.floats(rows, facts["in_features"]),)


def _normed_rows(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    size = facts["in_features"]
    return draw.floats(rows, size), draw.floats(rows, size), draw.floats(size), eps(draw)


GATE_UP = OpExamples(_gated_facts, _rows, by_row=("x",), keywords=gated_keywords)
NORMED_LINEAR = OpExamples(
    _normed_facts, _normed_rows, by_row=("x", "residual"), optional=("residual",), keywords=sum_keywords
)
NORMED_GATE_UP = OpExamples(
    _normed_gated_facts, _normed_rows, by_row=("x", "residual"), optional=("residual",), keywords=_normed_keywords
)

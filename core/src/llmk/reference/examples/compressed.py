"""Inputs of attention to groups of tokens: steps with cached rows; what nothing was written to is NaN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk.reference.examples.selected import EPS, cache_of, positions_of, step_of
from llmk.reference.op_examples import Draw, Facts, OpExamples


def _made_with(draw: Draw, facts: Facts, tokens: int) -> tuple[Any, ...]:
    """Rows and gates of a step's tokens, and what else entries are made with. Groups overlap, as those do of which
    tokens see some alone."""
    size, rotary = facts["head_dim"], facts["rotary_dim"]
    width = 2 * size if facts["top_k"] else size
    angles = draw.reals(200, rotary // 2)
    turned = torch.cat((angles.cos(), angles.sin()), 1)
    return draw.floats(tokens, 2 * width), draw.reals(facts["rate"], width), draw.floats(size), EPS, turned


def _select(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``select_entries``."""
    step, before, blocks = step_of(draw, rows)
    heads, size, tokens = facts["num_heads"], facts["head_dim"], step.num_tokens
    given = _made_with(draw, facts, tokens)
    caches = cache_of(draw, before, blocks, given[0].shape[1]), cache_of(draw, before, blocks, size)
    return draw.floats(tokens, heads, size), draw.floats(tokens, heads), *given, caches, step


def _attend(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Of ``compressed_attention``."""
    step, before, blocks = step_of(draw, rows)
    heads, size, tokens = facts["num_heads"], facts["head_dim"], step.num_tokens
    selected = None
    given: tuple[Any, ...] = (None, None, None, EPS, draw.reals(1, facts["rotary_dim"]))
    caches = [cache_of(draw, before, blocks, size)]
    if facts["rate"]:
        given = _made_with(draw, facts, tokens)
        caches += [cache_of(draw, before, blocks, given[0].shape[1]), cache_of(draw, before, blocks, size)]
    if facts["top_k"]:
        selected = _picked(draw, (positions_of(step) + 1) // facts["rate"], facts["top_k"])
    sinks = draw.reals(heads)
    return draw.floats(tokens, heads, size), draw.floats(tokens, size), *given, selected, sinks, tuple(caches), step


def _picked(draw: Draw, complete: Tensor, top_k: int) -> Tensor:
    """Of each token, some of so many entries, ascending."""
    found = torch.full((len(complete), top_k), -1, dtype=torch.int32)
    for row, count in enumerate(complete.tolist()):
        own = draw.order(count)[:top_k].sort().values
        found[row, : len(own)] = own.to(torch.int32)
    return found


_SMALL: Facts = {"num_heads": 6, "head_dim": 20, "rotary_dim": 8, "rate": 4, "top_k": 5}
_ATTENDS: Facts = {**_SMALL, "window": 12}

SELECT_ENTRIES = OpExamples(
    (_SMALL, {"num_heads": 16, "head_dim": 64, "rotary_dim": 64, "rate": 3, "top_k": 16}),
    _select,
    keywords=lambda draw, facts: {"top_k": facts["top_k"]},
)
COMPRESSED_ATTENTION = OpExamples(
    (_ATTENDS, {**_ATTENDS, "rate": 2, "top_k": 0}, {**_ATTENDS, "rate": 0, "top_k": 0}),
    _attend,
    keywords=lambda draw, facts: {"window": facts["window"], "scale": 0.2},
)

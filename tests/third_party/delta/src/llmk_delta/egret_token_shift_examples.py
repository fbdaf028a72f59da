"""Examples of the token shift: steps of a few requests, some of which go on, start, have no token, or are padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk.reference.op_examples import Draw, Facts, OpExamples

_SPARE_SLOTS = 3


def _steps(draw: Draw, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Slots, starts and ``fresh`` of a step with ``rows`` tokens, of which the last ones may be padding."""
    requests = 1 + int(draw.whole(0, 6, 1))
    tokens = rows - int(draw.whole(0, 1 + rows // 4, 1))
    cuts = draw.whole(0, tokens + 1, requests - 1).sort().values
    ends = torch.tensor([tokens, tokens], device=cuts.device)
    starts = torch.cat((torch.zeros_like(ends[:1]), cuts, ends))
    slots = torch.cat((draw.order(requests + _SPARE_SLOTS)[:requests], torch.full_like(ends[:1], -1)))
    return slots, starts, draw.whole(0, 2, requests + 1).bool()


def _arguments(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """All positional arguments. Shares are about what trained models have, between 0 and 1."""
    size, branches, rank = facts["size"], facts["branches"], facts["rank"]
    slots, starts, fresh = _steps(draw, rows)
    return (
        draw.floats(rows, size),
        draw.floats(len(slots) + _SPARE_SLOTS, size),
        slots,
        starts,
        fresh,
        draw.floats(branches, size, scale=0.3) + 0.5,
        draw.floats(size, scale=0.3) + 0.5,
        draw.floats(branches * rank, size, scale=size**-0.5),
        draw.floats(branches, rank, size, scale=rank**-0.5),
    )


TOKEN_SHIFT = OpExamples(
    (
        {"size": 64, "branches": 5, "rank": 16},
        {"size": 33, "branches": 6, "rank": 3},
        {"size": 7, "branches": 1, "rank": 1},
        {"size": 2560, "branches": 2, "rank": 32},
    ),
    _arguments,
    wide=("x",),
    strided=("x", "mix", "inner", "down", "up"),
    float32=("mix", "inner", "down", "up"),
    optional=("down",),
)

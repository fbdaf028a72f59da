"""FusedMoE for steps in which each expert has many rows: torch's grouped GEMM (CUTLASS), between kernels that route,
copy each expert's rows next to each other, and sum.

The library's GEMMs run at about 1.6 times the rate of those of :mod:`llmk_triton.moe.grouped`, which pays for the
copies where an expert has hundreds of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from llmk.reference.activations import GatedOptions
from llmk_triton.common.activations import activation, gated
from llmk_triton.moe.fused import ExpertRows, FusedMoE
from llmk_triton.moe.routing import share_of

grouped_mm: Callable[..., Tensor] = getattr(functional, "grouped_mm", None) or torch._grouped_mm  # before torch 2.10

_COPIED = 16
"""Rows of one expert that a program copies."""
_COLUMNS = 1024
"""Columns of a row that a program holds."""


def fused_moe(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, top_k: int, renormalize: bool, **options: Any
) -> Tensor:
    """As :func:`llmk_triton.moe.fused.fused_moe`, of bfloat16 weights without scales and biases."""
    if not x.shape[0]:
        return torch.empty_like(x)
    parameters = {name: options.pop(name) for name in GatedOptions.__annotations__ if name in options}
    kind, has_gates = options.get("activation", "silu"), options.get("gated", True)
    moe = FusedMoE(x, router_logits, weights, top_k, renormalize, **options)
    rows = moe.route()
    ends = rows.counts.cumsum(0, dtype=torch.int32)
    copied, places = by_expert(x.contiguous(), rows, ends, top_k)
    expanded = grouped_mm(copied, weights["gate_up"].transpose(1, 2), offs=ends)
    h = gated(expanded, kind, **parameters) if has_gates else activation(expanded, kind)
    each = grouped_mm(h, weights["down"].transpose(1, 2), offs=ends)
    return weighted_sum(each, places, rows.scores, moe.weighting)


def by_expert(x: Tensor, rows: ExpertRows, ends: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The row of every pair's token, in the order of experts, ``[tokens * top_k, hidden]``; and where each pair's
    stands, int32 ``[tokens * top_k]``."""
    tokens, hidden = x.shape
    copied = x.new_empty(tokens * top_k, hidden)
    places = rows.order.new_empty(tokens * top_k)
    columns = min(_COLUMNS, triton.next_power_of_2(hidden))
    grid = (triton.cdiv(tokens, _COPIED), rows.counts.shape[0])
    sizes = {"HIDDEN": hidden, "TOP_K": top_k, "ROWS": _COPIED, "COLUMNS": columns}
    copy_kernel[grid](copied, places, x, rows.counts, rows.order, ends, tokens, **sizes, num_warps=4)
    return copied, places


def weighted_sum(each: Tensor, places: Tensor, scores: Tensor, weighting: Mapping[str, Any]) -> Tensor:
    """The weighted sum of each token's rows of ``each``."""
    (tokens, top_k), hidden = scores.shape, each.shape[1]
    out = each.new_empty(tokens, hidden)
    columns = min(_COLUMNS, triton.next_power_of_2(hidden))
    sizes = {"HIDDEN": hidden, "TOP_K": top_k, "COLUMNS": columns, **weighting}
    sum_places_kernel[(tokens, triton.cdiv(hidden, columns))](out, each, places, scores, **sizes, num_warps=4)
    return out


@triton.jit(do_not_specialize=["num_tokens"])
def copy_kernel(
    copied, places, x, counts, order, ends, num_tokens,
    HIDDEN: tl.constexpr, TOP_K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copies ``ROWS`` of the rows of ``x`` ``[num_tokens, HIDDEN]`` that one expert computes to where its rows stand in
    ``copied``, which end at ``ends`` (int32 ``[experts]``). The expert is the second program id; ``counts`` and
    ``order`` are those of :func:`llmk_triton.moe.routing.route_kernel`."""
    expert = tl.program_id(1)
    count = tl.load(counts + expert)
    first = tl.program_id(0) * ROWS
    if first >= count:
        return
    row = first + tl.arange(0, ROWS)
    real = row < count
    pair = tl.load(order + expert.to(tl.int64) * num_tokens + row, real, other=0)
    place = tl.load(ends + expert) - count + row
    tl.store(places + pair, place, real)
    source = x + (pair // TOP_K).to(tl.int64)[:, None] * HIDDEN
    target = copied + place.to(tl.int64)[:, None] * HIDDEN
    for start in tl.range(0, HIDDEN, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        inside = real[:, None] & (column < HIDDEN)
        tl.store(target + column, tl.load(source + column, inside), inside)


@triton.jit
def sum_places_kernel(
    out, each, places, scores,
    HIDDEN: tl.constexpr, TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, SCALING: tl.constexpr, SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """As :func:`llmk_triton.moe.grouped.sum_kernel`; the row of ``each`` of a token's slot is in ``places``, ``[tokens,
    TOP_K]``."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.arange(0, SLOTS)
    used = slot < TOP_K
    share = share_of(tl.load(scores + token * TOP_K + slot, used, other=0.0), RENORMALIZE, SCALING)
    row = tl.load(places + token * TOP_K + slot, used, other=0).to(tl.int64)
    inside = used[:, None] & (column < HIDDEN)[None, :]
    rows = tl.load(each + row[:, None] * HIDDEN + column[None, :], inside, other=0.0)
    found = tl.sum(rows.to(tl.float32) * share[:, None], axis=0)
    tl.store(out + token * HIDDEN + column, found.to(out.dtype.element_ty), column < HIDDEN)

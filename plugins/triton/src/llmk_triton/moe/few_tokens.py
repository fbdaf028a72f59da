"""A mixture of experts for so few tokens that hardly two share an expert: vectors times matrices.

Weights are the traffic: a program has a few rows of one expert's matrices, or of all of a token's experts', and much of
that in flight at once. Experts and scores are what :func:`llmk_triton.moe.routing.select_kernel` found.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.activations import activate
from llmk_triton.common.tuples import append, nothing
from llmk_triton.moe.routing import share_of


@triton.jit
def _load(rows, column, inside, SIZE: tl.constexpr, STAGES: tl.constexpr):
    """``STAGES`` tiles of ``rows`` from ``column`` on; zeros beyond ``SIZE``."""
    tiles = nothing()
    for _ in tl.static_range(STAGES):
        tiles = append(tiles, tl.load(rows + column, inside & (column < SIZE), other=0.0))
        column += column.numel
    return tiles


@triton.jit
def _add_products(acc, left, right):
    for i in tl.static_range(len(left)):
        acc += left[i].to(tl.float32) * right[i].to(tl.float32)
    return acc


@triton.jit
def gate_up_few_kernel(
    out, x, experts, weight,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, TOP_K: tl.constexpr, ACTIVATION: tl.constexpr, FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[pair] = activate(gate) * up`` of a token's expert, ``[tokens * TOP_K, INNER]``; programs are ``[blocks of
    FEATURES, tokens * TOP_K]``. ``experts`` are ``[tokens, TOP_K]``, ``weight`` is ``[experts, 2 * INNER, HIDDEN]``."""
    pair = tl.program_id(1)
    token = (pair // TOP_K).to(tl.int64)
    pdl.wait(PDL)
    pdl.release(PDL)
    expert = tl.load(experts + pair)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)[None, :]
    # Rows beyond the last repeat it, and are not stored.
    gates = weight + expert.to(tl.int64) * (2 * INNER * HIDDEN) + tl.minimum(feature, INNER - 1)[:, None] * HIDDEN
    # Every row has its own copy, so that no thread gets it from another.
    values = x + token * HIDDEN + feature[:, None] * 0
    gate = tl.zeros([FEATURES, COLUMNS], tl.float32)
    up = tl.zeros([FEATURES, COLUMNS], tl.float32)
    for first in tl.range(0, HIDDEN, COLUMNS * STAGES, num_stages=1):
        held = _load(gates, first + column, True, HIDDEN, STAGES)
        held_up = _load(gates + INNER * HIDDEN, first + column, True, HIDDEN, STAGES)
        value = _load(values, first + column, True, HIDDEN, STAGES)
        gate = _add_products(gate, held, value)
        up = _add_products(up, held_up, value)
    dtype = out.dtype.element_ty
    gate = activate(tl.sum(gate, axis=1).to(dtype).to(tl.float32), ACTIVATION).to(dtype).to(tl.float32)
    up = tl.sum(up, axis=1).to(dtype).to(tl.float32)
    tl.store(out + pair.to(tl.int64) * INNER + feature, (gate * up).to(dtype), feature < INNER)


@triton.jit
def down_few_kernel(
    out, h, experts, scores, weight,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, SCALING: tl.constexpr,
    SLOTS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[token]``, ``[tokens, HIDDEN]``, from ``h`` ``[tokens * TOP_K, INNER]``; programs are ``[blocks of FEATURES,
    tokens]``. ``experts`` and ``scores`` are ``[tokens, TOP_K]``, ``weight`` is ``[experts, HIDDEN, INNER]``; ``SLOTS``
    is a power of two from ``TOP_K`` on.

    The kernel before let this one start after it had waited for experts and scores: they are complete, and need no
    waiting for. So the first weights are on their way before ``h`` is there.
    """
    token = tl.program_id(1).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    taken = slot < TOP_K
    # Not from this processor's own cache, which only waiting makes new.
    expert = tl.load(experts + token * TOP_K + slot, taken, other=0, cache_modifier=".cg").to(tl.int64)
    score = tl.load(scores + token * TOP_K + slot, taken, other=0.0, cache_modifier=".cg")

    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)[None, None, :]
    rows = weight + expert[:, None, None] * (HIDDEN * INNER) + tl.minimum(feature, HIDDEN - 1)[None, :, None] * INNER
    values = h + (token * TOP_K + slot)[:, None, None] * INNER + feature[None, :, None] * 0
    inside = taken[:, None, None]
    ahead = _load(rows, column, inside, INNER, STAGES)
    pdl.wait(PDL)
    pdl.release(PDL)
    acc = tl.zeros([SLOTS, FEATURES, COLUMNS], tl.float32)
    acc = _add_products(acc, ahead, _load(values, column, inside, INNER, STAGES))
    for first in tl.range(COLUMNS * STAGES, INNER, COLUMNS * STAGES, num_stages=1):
        held = _load(rows, first + column, inside, INNER, STAGES)
        acc = _add_products(acc, held, _load(values, first + column, inside, INNER, STAGES))
    share = share_of(score, RENORMALIZE, SCALING)
    dtype = out.dtype.element_ty
    each = tl.sum(acc, axis=2).to(dtype).to(tl.float32)
    tl.store(out + token * HIDDEN + feature, tl.sum(each * share[:, None], axis=0).to(dtype), feature < HIDDEN)

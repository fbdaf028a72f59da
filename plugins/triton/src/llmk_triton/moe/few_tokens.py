"""Mixture of experts for so few tokens that hardly two share an expert: one GEMV per pair of a token and an expert.

The time is that of reading the weights: each program reads a few rows of one expert's matrices, or of all of a token's
experts', with many loads in flight. Experts and scores are the output of :func:`llmk_triton.moe.routing.select_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.activations import activate, gate_with
from llmk_triton.common.tuples import append, nothing
from llmk_triton.moe.routing import share_of


@triton.jit
def _load(rows, column, inside, SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Loads ``STAGES`` tiles of ``rows`` from ``column`` on; zeros beyond ``SIZE``."""
    tiles = nothing()
    for _ in tl.static_range(STAGES):
        tiles = append(tiles, tl.load(rows + column, inside & (column < SIZE), other=0.0))
        column += column.numel
    return tiles


@triton.jit
def _multiply_add(acc, left, right):
    for i in tl.static_range(len(left)):
        acc += left[i].to(tl.float32) * right[i].to(tl.float32)
    return acc


@triton.jit
def gate_up_few_kernel(
    out, x, experts, weight, bias,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, TOP_K: tl.constexpr, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr,
    LIMIT: tl.constexpr, OFFSET: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[pair] = activate(gate) * up`` for each pair of a token and one of its experts, ``[tokens * TOP_K, INNER]``;
    the grid is ``[blocks of FEATURES, tokens * TOP_K]``. ``experts`` are ``[tokens, TOP_K]``, ``weight`` is ``[experts,
    2 * INNER, HIDDEN]`` and ``bias``, if ``HAS_BIAS``, ``[experts, 2 * INNER]``. Unless ``GATED``, there are ``INNER``
    rows, and ``out[pair] = activate(row)``."""
    expanded: tl.constexpr = INNER * (1 + GATED)
    pair = tl.program_id(1)
    token = (pair // TOP_K).to(tl.int64)
    pdl.wait(PDL)
    pdl.release(PDL)
    expert = tl.load(experts + pair)
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)[None, :]
    # Rows out of bounds repeat the last one, and are not stored.
    gates = weight + expert.to(tl.int64) * (expanded * HIDDEN) + tl.minimum(feature, INNER - 1)[:, None] * HIDDEN
    # Every row has its own copy, so that no data moves between threads.
    values = x + token * HIDDEN + feature[:, None] * 0
    gate = tl.zeros([FEATURES, COLUMNS], tl.float32)
    up = tl.zeros([FEATURES, COLUMNS], tl.float32)
    for first in tl.range(0, HIDDEN, COLUMNS * STAGES, num_stages=1):
        held = _load(gates, first + column, True, HIDDEN, STAGES)
        if GATED:
            held_up = _load(gates + INNER * HIDDEN, first + column, True, HIDDEN, STAGES)
        value = _load(values, first + column, True, HIDDEN, STAGES)
        gate = _multiply_add(gate, held, value)
        if GATED:
            up = _multiply_add(up, held_up, value)
    dtype = out.dtype.element_ty
    gate, up = tl.sum(gate, axis=1), tl.sum(up, axis=1)
    if HAS_BIAS:
        biases = bias + expert.to(tl.int64) * expanded + tl.minimum(feature, INNER - 1)
        gate += tl.load(biases).to(tl.float32)
        if GATED:
            up += tl.load(biases + INNER).to(tl.float32)
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    if GATED:
        found = gate_with(gate, up, out, ACTIVATION, ALPHA, LIMIT, OFFSET)
    else:
        found = activate(gate, ACTIVATION)
    tl.store(out + pair.to(tl.int64) * INNER + feature, found.to(dtype), feature < INNER)


@triton.jit
def down_few_kernel(
    out, h, experts, scores, weight, bias,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, SCALING: tl.constexpr,
    HAS_BIAS: tl.constexpr, SLOTS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``out[token]``, ``[tokens, HIDDEN]``, from ``h`` ``[tokens * TOP_K, INNER]``; the grid is ``[blocks of FEATURES,
    tokens]``. ``experts`` and ``scores`` are ``[tokens, TOP_K]``, ``weight`` is ``[experts, HIDDEN, INNER]`` and
    ``bias``, if ``HAS_BIAS``, ``[experts, HIDDEN]``; ``SLOTS`` is the next power of two from ``TOP_K``.

    The previous kernel released this one only after it had waited for experts and scores, so these are complete and can
    be read before the wait. Thus the first loads of weights start before ``h`` is complete.
    """
    token = tl.program_id(1).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    taken = slot < TOP_K
    # Loaded from L2: before the wait, this multiprocessor's L1 may be stale.
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
    acc = _multiply_add(acc, ahead, _load(values, column, inside, INNER, STAGES))
    for first in tl.range(COLUMNS * STAGES, INNER, COLUMNS * STAGES, num_stages=1):
        held = _load(rows, first + column, inside, INNER, STAGES)
        acc = _multiply_add(acc, held, _load(values, first + column, inside, INNER, STAGES))
    share = share_of(score, RENORMALIZE, SCALING)
    dtype = out.dtype.element_ty
    each = tl.sum(acc, axis=2)
    if HAS_BIAS:
        biases = bias + expert[:, None] * HIDDEN + tl.minimum(feature, HIDDEN - 1)[None, :]
        each += tl.load(biases, taken[:, None], other=0.0).to(tl.float32)
    each = each.to(dtype).to(tl.float32)
    tl.store(out + token * HIDDEN + feature, tl.sum(each * share[:, None], axis=0).to(dtype), feature < HIDDEN)

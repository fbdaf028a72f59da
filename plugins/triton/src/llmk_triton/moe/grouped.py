"""Mixture of experts on tensor cores: a grouped GEMM of each expert with the rows of its tokens.

Rows are gathered by index when they are loaded, and stored at their pair's index, so nothing is permuted in memory. The
weights are the first operand of ``tl.dot``, because their many rows fill a tensor core instruction; few tokens would
not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.activations import activate, gate_with
from llmk_triton.moe.routing import share_of


@triton.jit
def find_rows(counts, order, num_tokens, block, EXPERTS: tl.constexpr, EXPERT_BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """A block's expert, its remaining number of rows (not positive if the block is beyond the last), and ``ROWS``
    pairs, of which that many are valid.

    Every expert has as few blocks as hold its rows; ``counts`` and ``order`` are those of
    :func:`llmk_triton.moe.routing.route_kernel`.
    """
    expert = tl.arange(0, EXPERT_BLOCK)
    # Loaded from L2: kernels that call this before their wait may have a stale L1.
    count = tl.load(counts + expert, expert < EXPERTS, other=0, cache_modifier=".cg")
    blocks = (count + ROWS - 1) // ROWS
    ends = tl.cumsum(blocks, 0)
    own = tl.sum((ends <= block).to(tl.int32), axis=0)
    here = expert == own
    first = (block - tl.sum(tl.where(here, ends - blocks, 0), axis=0)) * ROWS
    length = tl.sum(tl.where(here, count, 0), axis=0) - first
    row = tl.arange(0, ROWS)
    place = own.to(tl.int64) * num_tokens + first + row
    pair = tl.load(order + place, row < length, other=0, cache_modifier=".cg")
    return own, length, pair


@triton.jit
def _add(acc, rows, value, scale, first, SCALED: tl.constexpr, PRECISION: tl.constexpr):
    """``acc + rows @ value``; with ``SCALED > 1``, times the scales of the block of as many columns that has ``first``,
    of which ``scale`` are the places of the first block's, one per row."""
    if SCALED <= 1:
        return tl.dot(rows.to(value.dtype), value, acc, input_precision=PRECISION)
    else:
        plain = tl.dot(rows.to(value.dtype), value, tl.zeros_like(acc), input_precision=PRECISION)
        return acc + plain * tl.load(scale + first // SCALED)[:, None]


@triton.jit
def _scales(scale, expert, row, OUT: tl.constexpr, SIZE: tl.constexpr, SCALED: tl.constexpr):
    """Where the first scale of each ``row`` of an expert's weight ``[OUT, SIZE]`` is."""
    if SCALED <= 1:
        return scale + expert.to(tl.int64) * OUT + row
    else:
        each: tl.constexpr = (SIZE + SCALED - 1) // SCALED
        return scale + (expert.to(tl.int64) * ((OUT + SCALED - 1) // SCALED) + row // SCALED) * each


@triton.jit(do_not_specialize=["num_tokens"])
def gate_up_kernel(
    out, x, weight, scale, bias, counts, order, num_tokens,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, ACTIVATION: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, OFFSET: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    EXPERT_BLOCK: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[pair] = activate(gate) * up``, ``[num_tokens * TOP_K, INNER]``, of ``x`` ``[num_tokens, HIDDEN]``.

    A program computes ``FEATURES`` features of ``ROWS`` rows of one expert; programs of the same rows are consecutive.
    ``weight`` is ``[EXPERTS, 2 * INNER, HIDDEN]`` and ``bias``, if ``HAS_BIAS``, ``[EXPERTS, 2 * INNER]``. Unless
    ``GATED``, they have ``INNER`` rows, and ``out[pair] = activate(row)``. ``SCALED`` is 0 for a plain weight; 1 for
    fp8 with a ``scale`` per output; else the rows and columns that share one, of which ``COLUMNS`` is a divisor.
    """
    expanded: tl.constexpr = INNER * (1 + GATED)
    parts: tl.constexpr = (INNER + FEATURES - 1) // FEATURES
    pdl.wait(PDL)
    pdl.release(PDL)
    block = tl.program_id(0) // parts
    expert, length, pair = find_rows(counts, order, num_tokens, block, EXPERTS, EXPERT_BLOCK, ROWS)
    if length <= 0:
        return
    feature = tl.program_id(0) % parts * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    # Rows out of bounds repeat the last one, and are not stored.
    gates = weight + expert.to(tl.int64) * (expanded * HIDDEN)
    gates += tl.minimum(feature, INNER - 1)[:, None] * HIDDEN + column[None, :]
    ups = gates + INNER * HIDDEN
    row = tl.minimum(feature, INNER - 1)
    gate_scale = _scales(scale, expert, row, expanded, HIDDEN, SCALED)
    up_scale = _scales(scale, expert, row + INNER, expanded, HIDDEN, SCALED)
    values = x + (pair // TOP_K).to(tl.int64)[None, :] * HIDDEN + column[:, None]
    gate = tl.zeros([FEATURES, ROWS], tl.float32)
    up = tl.zeros([FEATURES, ROWS], tl.float32)
    for first in tl.range(0, HIDDEN, COLUMNS):
        if HIDDEN % COLUMNS == 0:
            value = tl.load(values + first)
            gate = _add(gate, tl.load(gates + first), value, gate_scale, first, SCALED, PRECISION)
            if GATED:
                up = _add(up, tl.load(ups + first), value, up_scale, first, SCALED, PRECISION)
        else:
            inside = first + column < HIDDEN
            value = tl.load(values + first, inside[:, None], other=0.0)
            gate_rows = tl.load(gates + first, inside[None, :], other=0.0)
            gate = _add(gate, gate_rows, value, gate_scale, first, SCALED, PRECISION)
            if GATED:
                up_rows = tl.load(ups + first, inside[None, :], other=0.0)
                up = _add(up, up_rows, value, up_scale, first, SCALED, PRECISION)
    if SCALED == 1:
        gate *= tl.load(gate_scale)[:, None]
        if GATED:
            up *= tl.load(up_scale)[:, None]
    if HAS_BIAS:
        biases = bias + expert.to(tl.int64) * expanded + tl.minimum(feature, INNER - 1)
        gate += tl.load(biases).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(biases + INNER).to(tl.float32)[:, None]
    dtype = out.dtype.element_ty
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    if GATED:
        found = gate_with(gate, up, out, ACTIVATION, ALPHA, LIMIT, OFFSET)
    else:
        found = activate(gate, ACTIVATION)
    real = (feature < INNER)[:, None] & (tl.arange(0, ROWS) < length)[None, :]
    tl.store(out + pair.to(tl.int64)[None, :] * INNER + feature[:, None], found.to(dtype), real)


@triton.jit(do_not_specialize=["num_tokens"])
def down_kernel(
    out, h, weight, scale, bias, counts, order, num_tokens,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    EXPERT_BLOCK: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[pair]``, ``[num_tokens * TOP_K, HIDDEN]``, of ``h`` ``[num_tokens * TOP_K, INNER]``, with the programs of
    :func:`gate_up_kernel`; ``weight`` is ``[EXPERTS, HIDDEN, INNER]`` and ``bias``, if ``HAS_BIAS``, ``[EXPERTS,
    HIDDEN]``.

    The previous kernel released this one only after it had waited for ``counts`` and ``order``, so these are complete.
    """
    parts: tl.constexpr = (HIDDEN + FEATURES - 1) // FEATURES
    block = tl.program_id(0) // parts
    expert, length, pair = find_rows(counts, order, num_tokens, block, EXPERTS, EXPERT_BLOCK, ROWS)
    pdl.wait(PDL)
    pdl.release(PDL)
    if length <= 0:
        return
    feature = tl.program_id(0) % parts * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    weights = weight + expert.to(tl.int64) * (HIDDEN * INNER)
    weights += tl.minimum(feature, HIDDEN - 1)[:, None] * INNER + column[None, :]
    values = h + pair.to(tl.int64)[None, :] * INNER + column[:, None]
    scales = _scales(scale, expert, tl.minimum(feature, HIDDEN - 1), HIDDEN, INNER, SCALED)
    acc = tl.zeros([FEATURES, ROWS], tl.float32)
    for first in tl.range(0, INNER, COLUMNS):
        if INNER % COLUMNS == 0:
            rows, value = tl.load(weights + first), tl.load(values + first)
            acc = _add(acc, rows, value, scales, first, SCALED, PRECISION)
        else:
            inside = first + column < INNER
            rows = tl.load(weights + first, inside[None, :], other=0.0)
            value = tl.load(values + first, inside[:, None], other=0.0)
            acc = _add(acc, rows, value, scales, first, SCALED, PRECISION)
    if SCALED == 1:
        acc *= tl.load(scales)[:, None]
    if HAS_BIAS:
        biases = bias + expert.to(tl.int64) * HIDDEN + tl.minimum(feature, HIDDEN - 1)
        acc += tl.load(biases).to(tl.float32)[:, None]
    real = (feature < HIDDEN)[:, None] & (tl.arange(0, ROWS) < length)[None, :]
    place = pair.to(tl.int64)[None, :] * HIDDEN + feature[:, None]
    tl.store(out + place, acc.to(out.dtype.element_ty), real)


@triton.jit
def sum_kernel(
    out, each, scores,
    HIDDEN: tl.constexpr, TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, SCALING: tl.constexpr, SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[token]``, ``[tokens, HIDDEN]``: the sum of the rows of ``each`` ``[tokens, TOP_K, HIDDEN]``, weighted by
    ``scores`` ``[tokens, TOP_K]``; the grid is ``[tokens, blocks of COLUMNS]``."""
    pdl.wait(PDL)
    pdl.release(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.arange(0, SLOTS)
    share = share_of(tl.load(scores + token * TOP_K + slot, slot < TOP_K, other=0.0), RENORMALIZE, SCALING)
    inside = (slot < TOP_K)[:, None] & (column < HIDDEN)[None, :]
    rows = tl.load(each + (token * TOP_K + slot)[:, None] * HIDDEN + column[None, :], inside, other=0.0)
    found = tl.sum(rows.to(tl.float32) * share[:, None], axis=0)
    tl.store(out + token * HIDDEN + column, found.to(out.dtype.element_ty), column < HIDDEN)

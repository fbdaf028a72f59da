"""A mixture of experts for so few tokens that hardly two share an expert: vectors times matrices, in two launches.

Every program ranks its token's experts anew, which takes less time than a launch would. Weights are the traffic: a
program has a few rows of one expert's matrices, or of all of a token's experts', and much of that in flight at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton import pdl
from llmk_triton.activations import activate
from llmk_triton.moe_routing import rank_experts, share_of


@triton.jit
def gate_up_few_kernel(
    out, x, logits, bias, weight,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, EXPERT_BLOCK: tl.constexpr, FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[pair] = activate(gate) * up`` of a token's expert, ``[tokens * TOP_K, INNER]``; programs are ``[blocks of
    FEATURES, tokens * TOP_K]``. ``weight`` is ``[EXPERTS, 2 * INNER, HIDDEN]``."""
    pair = tl.program_id(1)
    token = (pair // TOP_K).to(tl.int64)
    pdl.wait(PDL)
    pdl.release(PDL)
    rank, _ = rank_experts(logits + token * EXPERTS, bias, EXPERTS, EXPERT_BLOCK, SCORING, HAS_BIAS)
    expert = tl.sum(tl.where(rank == pair % TOP_K, tl.arange(0, EXPERT_BLOCK), 0), axis=0)

    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    # Rows beyond the last repeat it, and are not stored.
    row = tl.minimum(feature, INNER - 1)[:, None] * HIDDEN + column[None, :]
    gates = weight + expert.to(tl.int64) * (2 * INNER * HIDDEN) + row
    ups = gates + INNER * HIDDEN
    x += token * HIDDEN + column
    gate = tl.zeros([FEATURES, COLUMNS], tl.float32)
    up = tl.zeros([FEATURES, COLUMNS], tl.float32)
    for first in tl.static_range(0, HIDDEN, COLUMNS):
        inside = first + column < HIDDEN
        value = tl.load(x + first, inside, other=0.0).to(tl.float32)[None, :]
        gate += tl.load(gates + first, inside[None, :], other=0.0).to(tl.float32) * value
        up += tl.load(ups + first, inside[None, :], other=0.0).to(tl.float32) * value
    dtype = out.dtype.element_ty
    gate = activate(tl.sum(gate, axis=1).to(dtype).to(tl.float32), ACTIVATION).to(dtype).to(tl.float32)
    up = tl.sum(up, axis=1).to(dtype).to(tl.float32)
    tl.store(out + pair.to(tl.int64) * INNER + feature, (gate * up).to(dtype), feature < INNER)


@triton.jit
def down_few_kernel(
    out, h, logits, bias, weight,
    HIDDEN: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr,
    HAS_BIAS: tl.constexpr, RENORMALIZE: tl.constexpr, SCALING: tl.constexpr, EXPERT_BLOCK: tl.constexpr,
    SLOTS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[token]``, ``[tokens, HIDDEN]``, from ``h`` ``[tokens * TOP_K, INNER]``; programs are ``[blocks of FEATURES,
    tokens]``. ``weight`` is ``[EXPERTS, HIDDEN, INNER]``; ``SLOTS`` is a power of two from ``TOP_K`` on.

    The kernel before has read the logits after it waited, before this one was started: they are complete, and need no
    waiting for. So the first weights are on their way before ``h`` is there.
    """
    token = tl.program_id(1).to(tl.int64)
    rank, scores = rank_experts(logits + token * EXPERTS, bias, EXPERTS, EXPERT_BLOCK, SCORING, HAS_BIAS)
    slot = tl.arange(0, SLOTS)
    taken = (rank[None, :] == slot[:, None]) & (slot < TOP_K)[:, None]
    expert = tl.sum(tl.where(taken, tl.arange(0, EXPERT_BLOCK)[None, :], 0), axis=1)
    share = share_of(tl.where(slot < TOP_K, tl.gather(scores, expert, 0), 0.0), RENORMALIZE, SCALING)

    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    row = tl.minimum(feature, HIDDEN - 1)[:, None] * INNER + column[None, :]
    weights = weight + expert.to(tl.int64)[:, None, None] * (HIDDEN * INNER) + row[None, :, :]
    values = h + (token * TOP_K + slot)[:, None] * INNER + column[None, :]
    inside = (slot < TOP_K)[:, None] & (column < INNER)[None, :]
    ahead = tl.load(weights, inside[:, None, :], other=0.0).to(tl.float32)
    pdl.wait(PDL)
    pdl.release(PDL)
    acc = ahead * tl.load(values, inside, other=0.0).to(tl.float32)[:, None, :]
    for first in tl.range(COLUMNS, INNER, COLUMNS):
        inside = (slot < TOP_K)[:, None] & (first + column < INNER)[None, :]
        value = tl.load(values + first, inside, other=0.0).to(tl.float32)
        acc += tl.load(weights + first, inside[:, None, :], other=0.0).to(tl.float32) * value[:, None, :]
    dtype = out.dtype.element_ty
    each = tl.sum(acc, axis=2).to(dtype).to(tl.float32)
    tl.store(out + token * HIDDEN + feature, tl.sum(each * share[:, None], axis=0).to(dtype), feature < HIDDEN)

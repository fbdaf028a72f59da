"""Routing: chooses each token's experts and their weights, as :func:`llmk.reference.moe.route`.

An expert's rank for a token is the number of experts with a greater key. Keys order by score, and equal scores by lower
expert index. They are integers, which order NaN too, so even a row of NaN gets valid experts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.tuples import append, nothing


@triton.jit
def _ordered(ranked, inside):
    """int32 keys in the order of float32 ``ranked``; outside ``inside``, less than any expert's."""
    bits = ranked.to(tl.int32, bitcast=True)
    return tl.where(inside, tl.maximum(bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x7FFFFFFF), -0x80000000)


@triton.jit
def _key(ranked, expert, inside, BLOCK: tl.constexpr):
    """Unique int64 keys of a token's experts, in the order of float32 ``ranked``; outside ``inside``, less than any
    expert's."""
    return (_ordered(ranked, inside).to(tl.int64) << 32) | (BLOCK - 1 - expert)


@triton.jit
def _append(order, count, pair, chosen):
    """Appends those of ``pair`` that are ``chosen`` to ``order``, which has ``count`` entries; returns the new
    count."""
    ordinal = tl.cumsum(chosen.to(tl.int32), 0)
    tl.store(order + count + ordinal - 1, pair, chosen)
    return count + tl.sum(chosen.to(tl.int32), axis=0)


@triton.jit
def _norms(logits, COMPLETE: tl.constexpr):
    """The maximum of every row of ``[rows, experts]``, and, with ``COMPLETE``, the sum of the exponentials relative to
    it."""
    peak = tl.max(logits, axis=1)
    total = tl.full([logits.shape[0]], 1.0, tl.float32)
    if COMPLETE:
        total = tl.sum(tl.exp(logits - peak[:, None]), axis=1)
    return peak, total


@triton.jit
def _score(logits, peak, total, SCORING: tl.constexpr):
    """The scores of logits of any shape."""
    if SCORING == "softmax":
        return tl.exp(logits - peak) / total
    else:
        return 1.0 / (1.0 + tl.exp(-logits))


@triton.jit
def _within_best(
    ranked, expert, EXPERTS: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """``ranked`` (``[rows, experts]``) with minus infinity in all but the ``TOP_GROUPS`` best of ``GROUPS`` groups of
    consecutive experts; of equal groups, the first ones are kept. A group's score is that of its best expert; if
    ``PAIRED``, the sum of its two best."""
    own = expert // (EXPERTS // GROUPS)
    mine = tl.zeros_like(ranked)
    scores = nothing()
    for group in tl.static_range(GROUPS):
        members = tl.where(own == group, ranked, float("-inf"))
        score = tl.max(members, axis=1)
        if PAIRED:
            first = tl.min(tl.where(members == score[:, None], expert, EXPERTS), axis=1)
            score += tl.max(tl.where(expert == first[:, None], float("-inf"), members), axis=1)
        scores = append(scores, score)
        mine = tl.where(own == group, score[:, None], mine)
    better = tl.zeros(ranked.shape, tl.int32)
    for group in tl.static_range(GROUPS):
        other = scores[group][:, None]
        better += ((other > mine) | ((other == mine) & (group < own))).to(tl.int32)
    return tl.where(better < TOP_GROUPS, ranked, float("-inf"))


@triton.jit(do_not_specialize=["num_tokens"])
def route_kernel(
    counts, order, scores, logits, bias, num_tokens,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Finds the tokens of one expert, whose index is the program id. Pairs are numbered ``token * TOP_K + rank``. Every
    program reads all logits; for more than some hundred tokens, or experts in groups, the next two kernels are faster.

    Writes to ``counts`` (int32 ``[EXPERTS]``) the number of the expert's tokens, to ``order`` (int32 ``[EXPERTS,
    num_tokens]``) their pairs in the order of tokens, and to ``scores`` (float32 ``[num_tokens, TOP_K]``) the expert's
    scores, which with ``RENORMALIZE`` are only relative to those of the token's other experts. ``logits`` are
    ``[num_tokens, EXPERTS]``.
    """
    pdl.wait(PDL)
    pdl.release(PDL)
    own = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    order += own.to(tl.int64) * num_tokens
    count = 0
    for first in tl.range(0, num_tokens, ROWS):
        token = first + tl.arange(0, ROWS)
        real = token < num_tokens
        row = logits + tl.minimum(token, num_tokens - 1).to(tl.int64) * EXPERTS
        inside = (expert < EXPERTS)[None, :]
        found = tl.load(row[:, None] + expert[None, :], inside, other=float("-inf")).to(tl.float32)
        mine = tl.load(row + own).to(tl.float32)
        peak, total = _norms(found, SCORING == "softmax" and (HAS_BIAS or not RENORMALIZE))
        score = _score(mine, peak, total, SCORING)
        if HAS_BIAS:
            added = tl.load(bias + expert, expert < EXPERTS, other=0.0).to(tl.float32)
            found = _score(found, peak[:, None], total[:, None], SCORING) + added[None, :]
            # If the score was computed a second time, it might be rounded differently and outrank itself.
            mine = tl.sum(tl.where((expert == own)[None, :], found, 0.0), axis=1)
        better = _key(found, expert[None, :], inside, BLOCK) > _key(mine, own, real, BLOCK)[:, None]
        rank = tl.sum(better.to(tl.int32), axis=1)
        chosen = real & (rank < TOP_K)
        pair = token * TOP_K + rank
        tl.store(scores + pair, score, chosen)
        count = _append(order, count, pair, chosen)
    tl.store(counts + own, count)


@triton.jit(do_not_specialize=["num_tokens"])
def select_kernel(
    experts, scores, logits, bias, num_tokens,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr, RENORMALIZE: tl.constexpr,
    HAS_BIAS: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, PAIRED: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Chooses the experts of ``ROWS`` tokens, best first: ``experts`` (int16) and ``scores`` (as in
    :func:`route_kernel`), both ``[num_tokens, TOP_K]``."""
    # The next kernel can't work before this one ends, but its programs can already be resident.
    pdl.release(PDL)
    pdl.wait(PDL)
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = token < num_tokens
    expert = tl.arange(0, BLOCK)[None, :]
    inside = expert < EXPERTS
    row = logits + tl.minimum(token, num_tokens - 1).to(tl.int64) * EXPERTS
    found = tl.load(row[:, None] + expert, inside, other=float("-inf")).to(tl.float32)
    by_score: tl.constexpr = HAS_BIAS or TOP_GROUPS < GROUPS
    peak, total = _norms(found, SCORING == "softmax" and (by_score or not RENORMALIZE))
    if by_score:
        found = tl.where(inside, _score(found, peak[:, None], total[:, None], SCORING), float("-inf"))
    if HAS_BIAS:
        found += tl.load(bias + expert, inside, other=0.0).to(tl.float32)
    if TOP_GROUPS < GROUPS:
        found = _within_best(found, expert, EXPERTS, GROUPS, TOP_GROUPS, PAIRED)
    key = _ordered(found, inside)
    for slot in tl.static_range(TOP_K):
        best = tl.max(key, axis=1)
        own = tl.min(tl.where(key == best[:, None], expert, BLOCK), axis=1)
        score = _score(tl.load(row + own).to(tl.float32), peak, total, SCORING)
        tl.store(experts + token * TOP_K + slot, own.to(tl.int16), real)
        tl.store(scores + token * TOP_K + slot, score, real)
        key = tl.where(expert == own[:, None], -0x80000000, key)


@triton.jit(do_not_specialize=["num_tokens"])
def place_kernel(
    counts, order, experts, num_tokens, TOP_K: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Finds the tokens of one expert, as :func:`route_kernel` does, from the output of :func:`select_kernel`."""
    pdl.wait(PDL)
    pdl.release(PDL)
    own = tl.program_id(0)
    order += own.to(tl.int64) * num_tokens
    count = 0
    for first in tl.range(0, num_tokens * TOP_K, PAIRS):
        pair = first + tl.arange(0, PAIRS)
        chosen = tl.load(experts + pair, pair < num_tokens * TOP_K, other=-1) == own
        count = _append(order, count, pair, chosen)
    tl.store(counts + own, count)


@triton.jit
def share_of(score, RENORMALIZE: tl.constexpr, SCALING: tl.constexpr):
    """The weights of a token's experts, from their scores; scores of unused slots are zero."""
    if RENORMALIZE:
        score = score / tl.sum(score, axis=0)
    return score * SCALING

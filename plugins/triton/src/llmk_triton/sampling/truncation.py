"""Finds the limit of top-k and top-p without sorting: counts or weighs the tokens within several distances, keeps the
two distances that bracket the limit, and repeats between these.

A token's *distance* is the difference between the greatest logit and its own, divided by the temperature; its weight is
``2**24 * exp(-distance)``, rounded. Because weights are integers, sums don't depend on the order of addition.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.sampling.vocabulary import key_logit, load_part, row_peak

PLAIN = (
    *("temperature", "top_k", "top_p", "min_p", "seeds", "positions", "arrived", "num_open", "parts"),
    *("stride_t", "stride_k", "stride_p", "stride_m", "stride_s", "stride_n", "has_k", "has_p", "has_m"),
)
"""Arguments that Triton must not specialize: columns of tables, or stand-ins for absent arguments, have any
alignment."""

FARTHEST = tl.constexpr(17.4)
"""A distance at which weights round to zero; farther tokens can be ignored."""

_EVERYTHING = tl.constexpr(1 << 62)
_TOP_WEIGHT = tl.constexpr(float(1 << 24))
_WHOLE = tl.constexpr(float(1 << 23))
"""From here on, float32 numbers are integers."""


@triton.jit
def distances(logits, best, temperature):
    """The distances of ``logits`` below ``best``."""
    return (best - logits) / temperature


@triton.jit
def weigh(distance):
    """``2**24 * exp(-distance)``, rounded to the nearest integer, ties to even: int32."""
    weight = tl.exp(-distance) * _TOP_WEIGHT
    return tl.where(weight < _WHOLE, (weight + _WHOLE) - _WHOLE, weight).to(tl.int32)


@triton.jit
def load_truncation(top_k, top_p, row, stride_k, stride_p, has_k, has_p):
    """A row's top-k and top-p; 0 and 1 if off."""
    k = tl.load(top_k + row * stride_k, has_k != 0, other=0)
    p = tl.load(top_p + row * stride_p, has_p != 0, other=1.0)
    return tl.maximum(k, 0), tl.minimum(p, 1.0)


@triton.jit
def share(p, mass):
    """The least integer weight that is at least ``p`` times ``mass``, and at least 1, as
    :meth:`llmk.reference.sampling.truncation.Truncation.floor_of_sorted` rounds it."""
    return tl.maximum(tl.ceil(p * mass.to(tl.float32)).to(tl.int64), 1)


@triton.jit
def _pivots(near, far, FIRST: tl.constexpr, PIVOTS: tl.constexpr):
    """Distances to try, ascending. In the first round they are denser near zero, where few tokens have large weights,
    and the last is infinite."""
    step = tl.arange(0, PIVOTS) + 1.0
    if FIRST:
        part = step / (PIVOTS - 1)
        return tl.where(step == PIVOTS, float("inf"), FARTHEST * part * part)
    near, far = tl.maximum(near, 0.0), tl.minimum(far, FARTHEST)
    return near + (far - near) * (step / (PIVOTS + 1))


@triton.jit(do_not_specialize=PLAIN)
def narrow_kernel(
    logits, peaks, temperature, top_k, top_p, sums, bounds, goals, arrived, stride, vocab, stride_t, stride_k, stride_p,
    has_k, has_p,
    FEW: tl.constexpr, FIRST: tl.constexpr, PIVOTS: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One round. The grid is ``[parts, rows]``; rows that are greedy or not truncated are skipped.

    ``sums`` is int64 ``[rows, parts, PIVOTS]``; ``arrived`` int32 ``[rows]``, initially zero. ``bounds`` (float32
    ``[rows, 2]``) are two distances that bracket the limit: it is farther than the first, and at most as far as the
    second. ``goals`` (int64 ``[rows, 3]``) are the number or the weight of tokens that the limit must reach, the part
    of it that the nearer bound reaches, and the most tokens that are open between the bounds; rows with at most ``FEW``
    are skipped.
    """
    part, row, parts = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    pdl.release(PDL)
    pdl.wait(PDL)
    heat = tl.load(temperature + row * stride_t)
    k, p = load_truncation(top_k, top_p, row, stride_k, stride_p, has_k, has_p)
    if (heat == 0) | ((k == 0) & (p == 1)):
        return
    near, far = tl.full([], -1.0, tl.float32), tl.full([], float("inf"), tl.float32)
    if not FIRST:
        if tl.load(goals + 3 * row + 2) <= FEW:
            return
        near, far = tl.load(bounds + 2 * row), tl.load(bounds + 2 * row + 1)
    pivots = _pivots(near, far, FIRST, PIVOTS)
    best = key_logit(row_peak(peaks, row, parts, PARTS))
    x, token = load_part(logits, row, part, stride, vocab, DEPTH, WIDTH)
    distance = distances(x, best, heat)
    amount = tl.where(k > 0, (token < vocab).to(tl.int32), weigh(distance))
    index = tl.arange(0, PIVOTS)
    found = tl.zeros([PIVOTS], tl.int64)
    for i in tl.static_range(PIVOTS):
        pivot = tl.max(tl.where(index == i, pivots, -1.0))
        within = tl.sum(tl.where(distance <= pivot, amount, 0), axis=0)
        found = tl.where(index == i, tl.sum(within.to(tl.int64)), found)
    sums += row * parts * PIVOTS
    tl.store(sums + part * PIVOTS + index, found)
    # All of the program's stores must be visible before its counter increment.
    tl.debug_barrier()
    if tl.atomic_add(arrived + row, 1, sem="acq_rel") == parts - 1:
        _settle(pivots, near, far, k, p, vocab, sums, bounds + 2 * row, goals + 3 * row, parts, FIRST, PARTS, PIVOTS)


@triton.jit
def _settle(
    pivots, near, far, k, p, vocab, sums, bounds, goals, parts,
    FIRST: tl.constexpr, PARTS: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """The last program of a row computes tighter bounds from all sums."""
    part, index = tl.arange(0, PARTS)[:, None], tl.arange(0, PIVOTS)[None, :]
    # Other programs wrote these, so they must be loaded from L2, not from this multiprocessor's L1.
    found = tl.load(sums + part * PIVOTS + index, part < parts, other=0, cache_modifier=".cg")
    total = tl.sum(found, axis=0)
    if FIRST:
        goal = tl.where(k > 0, tl.minimum(k, vocab), share(p, tl.max(total)))
        reached, left = goal * 0, goal * 0 + vocab
    else:
        goal, reached, left = tl.load(goals), tl.load(goals + 1), tl.load(goals + 2)
    beyond = total < goal
    near = tl.maximum(near, tl.max(tl.where(beyond, pivots, -1.0)))
    far = tl.minimum(far, tl.min(tl.where(beyond, float("inf"), pivots)))
    far = tl.where(near >= FARTHEST, near, far)
    reached = tl.maximum(reached, tl.max(tl.where(beyond, total, 0)))
    # What lies between the bounds; from a weight, the number of tokens follows by the least weight of one.
    amount = tl.min(tl.where(beyond, _EVERYTHING, total)) - tl.where((k > 0) & (p < 1), 0, reached)
    least = tl.where(k > 0, 1, tl.maximum(weigh(far), 1))
    tl.store(bounds, near)
    tl.store(bounds + 1, far)
    tl.store(goals, goal)
    tl.store(goals + 1, reached)
    tl.store(goals + 2, tl.minimum(left, amount // least))

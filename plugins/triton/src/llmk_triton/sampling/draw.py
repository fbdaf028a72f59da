"""Samples a token per row: one kernel sums the weights of all tokens that are certainly kept and collects the tokens
that may be kept; then one program per row finds the exact truncation limit among these few, and the sampled token."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.sampling.truncation import PLAIN, distances, load_truncation, share, weigh
from llmk_triton.sampling.vocabulary import key_logit, key_token, load_part, row_peak

_HALF = tl.constexpr(20)
"""The uniform number has twice as many bits, and the total at most 42, so they are multiplied in two halves."""
_HALF_MASK = tl.constexpr((1 << 20) - 1)
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def _target(seed, position, total):
    """A uniform number below ``total``, as :mod:`llmk.reference.sampling.counter_rng` and the reference's sampling
    compute it."""
    x = _mix(_mix(seed.to(tl.uint64) + _GOLDEN) + position.to(tl.uint64) * _GOLDEN)
    bits = (x >> (64 - 2 * _HALF)).to(tl.int64)
    high, low = bits >> _HALF, bits & _HALF_MASK
    return (high * total + ((low * total) >> _HALF)) >> _HALF


@triton.jit
def _farthest(min_p, row, stride_m, has_m):
    """The largest distance that min-p keeps."""
    least = tl.load(min_p + row * stride_m, has_m != 0, other=0.0)
    # Not the negative logarithm, which may be a negative zero.
    return tl.where(least > 0, 0.0 - tl.log(tl.where(least > 0, least, 1.0)), float("inf"))


@triton.jit
def _bounds(bounds, row, k, p, farthest):
    """Two distances: tokens up to the first are kept; tokens farther, but not farther than the second, may be kept."""
    searched = (k > 0) | (p < 1)
    near = tl.load(bounds + 2 * row, searched, other=float("inf"))
    far = tl.load(bounds + 2 * row + 1, searched, other=-1.0)
    # Top-p applies to what top-k keeps, so its limit is not known yet.
    near = tl.where((k > 0) & (p < 1), -1.0, near)
    return tl.minimum(near, farthest), far


@triton.jit(do_not_specialize=PLAIN)
def collect_kernel(
    logits, peaks, temperature, top_k, top_p, min_p, bounds, kept, open_ids, num_open, stride, vocab, stride_t,
    stride_k, stride_p, stride_m, has_k, has_p, has_m,
    PARTS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The grid is ``[parts, rows]``. ``kept`` (int64 ``[rows, parts]``) is the weight of each part's tokens that are
    certainly kept; ``open_ids`` (int32 ``[rows, vocab]``) are the tokens that may be kept, in any order, and
    ``num_open`` (int32 ``[rows]``, initially zero) their number.
    """
    part, row, parts = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    pdl.release(PDL)
    pdl.wait(PDL)
    heat = tl.load(temperature + row * stride_t)
    if heat == 0:
        return
    k, p = load_truncation(top_k, top_p, row, stride_k, stride_p, has_k, has_p)
    near, far = _bounds(bounds, row, k, p, _farthest(min_p, row, stride_m, has_m))
    best = key_logit(row_peak(peaks, row, parts, PARTS))
    x, token = load_part(logits, row, part, stride, vocab, DEPTH, WIDTH)
    distance = distances(x, best, heat)
    certain = tl.sum(tl.where(distance <= near, weigh(distance), 0), axis=0)
    tl.store(kept + row * parts + part, tl.sum(certain.to(tl.int64)))
    is_open = (distance > near) & (distance <= far) & (token < vocab)
    flags = is_open.to(tl.int32)
    in_column = tl.sum(flags, axis=0)
    count = tl.sum(in_column)
    if count > 0:
        first = tl.atomic_add(num_open + row, count, sem="relaxed")
        place = first + (tl.cumsum(in_column, axis=0) - in_column)[None, :] + tl.cumsum(flags, axis=0) - flags
        tl.store(open_ids + row * vocab + place, token, is_open)


@triton.jit
def _load_open(ids, row_logits, best, heat, first, count, CHUNK: tl.constexpr):
    """Distances, weights and ids of a chunk of a row's open tokens; entries out of bounds have an id beyond the
    vocabulary."""
    at = first + tl.arange(0, CHUNK)
    token = tl.load(ids + at, at < count, other=1 << 30)
    x = tl.load(row_logits + token, at < count, other=0.0).to(tl.float32)
    distance = distances(x, best, heat)
    return distance, weigh(distance), token


@triton.jit
def _add_up(distance, weight, token, limit, stop, counted):
    amount = tl.where(counted, 1, weight)
    return tl.sum(tl.where((distance <= limit) & (token < stop), amount, 0).to(tl.int64))


@triton.jit
def _within(
    limit, stop, counted, distance, weight, token, ids, row_logits, best, heat, count, CHUNK: tl.constexpr
):  # fmt: skip
    """The weight (or, with ``counted``, the number) of the open tokens with ids below ``stop`` that are not farther
    than ``limit``. The first chunk is an argument, the others are loaded."""
    total = _add_up(distance, weight, token, limit, stop, counted)
    for first in tl.range(CHUNK, count, CHUNK):
        more, its_weight, its_token = _load_open(ids, row_logits, best, heat, first, count, CHUNK)
        total += _add_up(more, its_weight, its_token, limit, stop, counted)
    return total


@triton.jit
def _as_bits(distance):
    """Integers in the order of non-negative distances; -1 for negative ones."""
    return tl.where(distance < 0, -1, distance.to(tl.int32, bitcast=True))


@triton.jit
def _search(
    low, high, goal, stop, counted, distance, weight, token, ids, row_logits, best, heat, count, CHUNK: tl.constexpr
):  # fmt: skip
    """Binary search for the least distance between ``low`` and ``high`` within which the tokens reach ``goal``;
    distances are :func:`_as_bits`."""
    while low < high:
        middle = low + (high - low) // 2
        limit = middle.to(tl.float32, bitcast=True)
        found = _within(limit, stop, counted, distance, weight, token, ids, row_logits, best, heat, count, CHUNK)
        enough = found >= goal
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return high


@triton.jit
def _find_limit(
    k, p, bounds, goals, vocab, distance, weight, token, ids, row_logits, best, heat, count, CHUNK: tl.constexpr
):  # fmt: skip
    """The distance up to which a row's top-k and top-p keep tokens; ``bounds`` and ``goals`` are the row's."""
    both = (k > 0) & (p < 1)
    low, high = _as_bits(tl.load(bounds)) + 1, _as_bits(tl.load(bounds + 1))
    goal = tl.load(goals)
    left = tl.where(both, goal, goal - tl.load(goals + 1))
    high = _search(low, high, left, vocab, k > 0, distance, weight, token, ids, row_logits, best, heat, count, CHUNK)
    if both:
        # Among tokens at the limit itself, top-k keeps as many as fit.
        nearer = tl.where(high > 0, (high - 1).to(tl.float32, bitcast=True), -1.0)
        number = _within(nearer, vocab, True, distance, weight, token, ids, row_logits, best, heat, count, CHUNK)
        mass = _within(nearer, vocab, False, distance, weight, token, ids, row_logits, best, heat, count, CHUNK)
        mass += (goal - number) * weigh(high.to(tl.float32, bitcast=True))
        left = share(p, mass)
        high = _search(
            high * 0, high, left, vocab, False, distance, weight, token, ids, row_logits, best, heat, count, CHUNK
        )  # fmt: skip
    return high.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=PLAIN)
def choose_kernel(
    logits, peaks, temperature, top_k, top_p, min_p, seeds, positions, bounds, goals, kept, open_ids, num_open, out,
    stride, vocab, parts, stride_t, stride_k, stride_p, stride_m, stride_s, stride_n, has_k, has_p, has_m,
    CHUNK: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Samples the token of each row, one program per row, from the outputs of the previous kernels: int64 ``[rows]`` at
    ``out``."""
    row = tl.program_id(0).to(tl.int64)
    pdl.release(PDL)
    pdl.wait(PDL)
    peak = row_peak(peaks, row, parts, PARTS)
    best, top_token = key_logit(peak), key_token(peak)
    heat = tl.load(temperature + row * stride_t)
    if heat == 0:
        tl.store(out + row, top_token.to(tl.int64))
        return
    row_logits, ids, count = logits + row * stride, open_ids + row * vocab, tl.load(num_open + row)
    distance, weight, token = _load_open(ids, row_logits, best, heat, 0, count, CHUNK)
    limit = _farthest(min_p, row, stride_m, has_m)
    k, p = load_truncation(top_k, top_p, row, stride_k, stride_p, has_k, has_p)
    if (k > 0) | (p < 1):
        found = _find_limit(
            k, p, bounds + 2 * row, goals + 3 * row, vocab, distance, weight, token, ids, row_logits, best, heat,
            count, CHUNK,
        )  # fmt: skip
        limit = tl.minimum(limit, found)

    size: tl.constexpr = DEPTH * WIDTH
    part = tl.arange(0, PARTS)
    certain = tl.load(kept + row * parts + part, part < parts, other=0)
    total = tl.sum(certain)
    total += _within(limit, vocab, False, distance, weight, token, ids, row_logits, best, heat, count, CHUNK)
    target = _target(tl.load(seeds + row * stride_s), tl.load(positions + row * stride_n), total)
    first, last, before = tl.full([], 0, tl.int32), parts - 1, target * 0
    while first < last:
        middle = (first + last) // 2
        found = tl.sum(tl.where(part <= middle, certain, 0))
        stop = (middle + 1) * size
        found += _within(limit, stop, False, distance, weight, token, ids, row_logits, best, heat, count, CHUNK)
        here = found > target
        before = tl.where(here, before, found)
        last = tl.where(here, middle, last)
        first = tl.where(here, first, middle + 1)
    column = first * size + tl.arange(0, size)
    x = tl.load(row_logits + column, column < vocab, other=float("-inf")).to(tl.float32)
    in_part = distances(x, best, heat)
    cumulative = tl.cumsum(tl.where(in_part <= limit, weigh(in_part), 0).to(tl.int64), axis=0)
    chosen = first * size + tl.sum((cumulative <= target - before).to(tl.int32))
    # Logits with NaN have no distribution; the id must still be valid, because the next step embeds it.
    tl.store(out + row, tl.where(total > 0, chosen, top_token).to(tl.int64))

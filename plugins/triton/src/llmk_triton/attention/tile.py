"""The part that prefill and decode share: one tile of keys and values, loaded through the block table, in an online
softmax (FlashAttention-2, arXiv:2307.08691; paged as in arXiv:2309.06180).

Logits are in units of ``log2(e)``, so that ``exp2`` replaces ``exp``.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def start_rows(sinks, head, inside, first, HAS_SINKS: tl.constexpr):
    """The initial maximum and sum of the online softmax, float32, of ``head``'s shape.

    A sink is a key without a value: it is included if ``first``; ``inside`` masks the heads that exist.
    """
    peak = tl.full(head.shape, float("-inf"), tl.float32)
    total = tl.zeros(head.shape, tl.float32)
    if HAS_SINKS:
        counts = inside & first
        peak = tl.where(counts, tl.load(sinks + head, inside, other=0.0) * LOG2E, peak)
        total = tl.where(counts, 1.0, total)
    return peak, total


@triton.jit
def scaled(x, scale, like):
    """``x`` times ``scale`` if ``like`` points to fp8. The K scale is applied to the queries, the V scale to the
    result."""
    if like.dtype.element_ty.primitive_bitwidth == 8:
        return (x.to(tl.float32) * scale).to(x.dtype)
    else:
        return x


@triton.jit
def finish_rows(acc, total):
    """The attention output of rows; zeros for rows that saw no key."""
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def blocks_of(table, start, low, limit, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """The block ids (int32 ``[TILE]``) of a request's tokens from ``start`` on; 0 for tokens before ``low`` and from
    ``limit`` on."""
    token = start + tl.arange(0, TILE)
    return tl.load(table + token // BLOCK_SIZE, (token >= low) & (token < limit), other=0)


@triton.jit
def load_known(place, there, WHOLE: tl.constexpr):
    """Loads ``place``, with zeros where ``there`` is false; with ``WHOLE``, without a mask."""
    if WHOLE:
        return tl.load(place)
    return tl.load(place, there, other=0.0)


@triton.jit
def load_scales(place, there):
    """Loads float32 scales from among bytes; zeros where ``there`` is false."""
    return tl.load(place.to(tl.pointer_type(tl.float32)), there, other=0.0)


@triton.jit
def soften(
    logits, total, peak, token, position, known, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the logits ``[rows, TILE]`` of a tile's keys to the rows' online softmax: their weights, by how much the
    rows' results so far shrink, and the new total and maximum. Arguments are as in :func:`attend_tile`; ``known`` masks
    the keys that exist."""
    # ``scale`` is applied in the subtraction below, where scaling and subtraction are one FMA.
    scale: tl.constexpr = LOG2E if SOFTCAP > 0 else SCALE * LOG2E
    if SOFTCAP > 0:
        # tanh(y) is 2 * sigmoid(2 * y) - 1.
        logits = SOFTCAP * (2.0 * tl.sigmoid(2.0 * SCALE / SOFTCAP * logits) - 1.0)
    if MASKED:
        seen = known[None, :] & (token[None, :] <= position[:, None])
        if CHUNKED:
            seen = seen & (token[None, :] >= position[:, None] // WINDOW * WINDOW)
        elif WINDOW > 0:
            seen = seen & (token[None, :] > position[:, None] - WINDOW)
        logits = tl.where(seen, logits, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(logits, axis=1) * scale)
    anchor = new_peak
    if MASKED:
        # For rows that have seen no key so far.
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(logits * scale - anchor[:, None])
    shrink = tl.exp2(peak - anchor)
    if len(total.shape) == 2:
        total = total * shrink[:, None] + weights
    else:
        total = total * shrink + tl.sum(weights, axis=1)
    return weights, shrink, total, new_peak


@triton.jit
def attend_tile(
    acc, total, peak, q, keys, values, block, start, position, low, limit, stride_block, stride_token,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SIZE: tl.constexpr,
    VALUE: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Adds keys ``start`` to ``start + TILE - 1`` of a request to the rows' online softmax.

    ``q`` is ``[rows, columns]`` with ``columns >= SIZE`` and zeros beyond, ``acc`` ``[rows, columns]`` of which
    ``VALUE`` are used; ``position`` is the position of each row's
    query; ``keys`` and ``values`` point to the first token of block 0; ``block`` is the result of :func:`blocks_of` for
    this tile. It is an argument, so that a loop can load it one tile ahead and the loads of keys don't wait for it.
    ``total`` is ``[rows]``, or ``[rows, TILE]`` to be summed after the loop, because a sum over a row that several
    warps share synchronizes them. Without ``MASKED``, every row sees every key of the tile; with it, a row sees the
    keys up to its position and less than ``WINDOW`` before it (0: no limit), or, if ``CHUNKED``, those of its chunk of
    ``WINDOW`` keys. Cache entries of tokens before ``low``, and from ``limit`` on, are not read. ``SCALE`` is positive;
    ``PRECISION`` is the input precision of float32 ``tl.dot``. With ``SCALED``, keys and values are int8 with a scale
    per token (:class:`~llmk_triton.attention.int8_cache.Int8Attention`).
    """
    token = start + tl.arange(0, TILE)
    column = tl.arange(0, q.shape[1])
    place = (block.to(tl.int64) * stride_block + token % BLOCK_SIZE * stride_token)[:, None]
    known = (token >= low) & (token < limit)
    there = (column < SIZE)[None, :]
    if MASKED:
        there = there & known[:, None]
    whole: tl.constexpr = not MASKED and q.shape[1] == SIZE
    k = load_known(keys + place + column[None, :], there, whole).to(q.dtype)
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if SCALED:
        scales = block.to(tl.int64) * stride_block + BLOCK_SIZE * SIZE + token % BLOCK_SIZE * 4
        logits *= load_scales(keys + scales, known)[None, :]
    weights, shrink, total, new_peak = soften(
        logits, total, peak, token, position, known, SCALE, SOFTCAP, WINDOW, CHUNKED, MASKED
    )
    if SCALED:
        weights *= load_scales(values + scales, known)[None, :]
    own = tl.arange(0, acc.shape[1])
    there = (own < VALUE)[None, :]
    if MASKED:
        there = there & known[:, None]
    whole_value: tl.constexpr = not MASKED and acc.shape[1] == VALUE
    v = load_known(values + place + own[None, :], there, whole_value).to(q.dtype)
    acc = tl.dot(weights.to(q.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, total, new_peak

"""What prefill and decode have in common: one tile of keys and values, read through the block table, in a softmax that
runs along them (FlashAttention-2, arXiv:2307.08691; paged as in arXiv:2309.06180).

Logits are kept in units of ``log2(e)``, so that ``exp2`` serves for ``exp``.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def start_rows(sinks, head, inside, first, HAS_SINKS: tl.constexpr):
    """Peak and total of rows that have seen no key yet, float32 like ``head``.

    A sink is a key without a value: it counts where ``first`` holds, and ``inside`` tells which ``head`` there are.
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
    """``x`` times ``scale`` where ``like`` points to fp8: keys' scales go to queries, values' to what was found."""
    if like.dtype.element_ty.primitive_bitwidth == 8:
        return (x.to(tl.float32) * scale).to(x.dtype)
    else:
        return x


@triton.jit
def finish_rows(acc, total):
    """What rows have found; zeros for those that saw no key."""
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def blocks_of(table, start, low, limit, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """The blocks (int32 ``[TILE]``) in which a request's tokens from ``start`` on are kept; 0 for tokens before ``low``
    and from ``limit`` on."""
    token = start + tl.arange(0, TILE)
    return tl.load(table + token // BLOCK_SIZE, (token >= low) & (token < limit), other=0)


@triton.jit
def _load(place, there, WHOLE: tl.constexpr):
    """What lies at ``place``, and zeros where nothing is ``there``; with ``WHOLE`` all is."""
    if WHOLE:
        return tl.load(place)
    return tl.load(place, there, other=0.0)


@triton.jit
def attend_tile(
    acc, total, peak, q, keys, values, block, start, position, low, limit, stride_block, stride_token,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds keys ``start`` to ``start + TILE - 1`` of a request to the rows' running softmax.

    ``q`` is ``[rows, columns]`` with ``columns >= SIZE`` and zeros beyond, ``position`` that of each row's query,
    ``keys`` and ``values`` point to the first token of block 0, ``block`` is what :func:`blocks_of` says of the tile:
    it is given, so that a loop can have it before the tile's turn comes, and loads of keys wait for no other. ``total``
    is ``[rows]``, or ``[rows, TILE]``, to be summed at the end: where warps share rows, each sum waits for all. Without
    ``MASKED`` every row sees every key of the tile; with it, those up to its position and less than ``WINDOW`` back
    (0: any). What is kept of tokens before ``low``, and from ``limit`` on, is not read. ``SCALE`` is positive,
    ``PRECISION`` that of float32 products.
    """
    token = start + tl.arange(0, TILE)
    column = tl.arange(0, q.shape[1])
    place = (block.to(tl.int64) * stride_block + token % BLOCK_SIZE * stride_token)[:, None] + column[None, :]
    known = (token >= low) & (token < limit)
    there = (column < SIZE)[None, :]
    if MASKED:
        there = there & known[:, None]
    whole: tl.constexpr = not MASKED and q.shape[1] == SIZE
    k = _load(keys + place, there, whole).to(q.dtype)
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    # Logits stay as they are, and ``scale`` is left to where they are subtracted from: one operation for both.
    scale: tl.constexpr = LOG2E if SOFTCAP > 0 else SCALE * LOG2E
    if SOFTCAP > 0:
        # tanh(y) is 2 * sigmoid(2 * y) - 1.
        logits = SOFTCAP * (2.0 * tl.sigmoid(2.0 * SCALE / SOFTCAP * logits) - 1.0)
    if MASKED:
        seen = known[None, :] & (token[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (token[None, :] > position[:, None] - WINDOW)
        logits = tl.where(seen, logits, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(logits, axis=1) * scale)
    anchor = new_peak
    if MASKED:
        # Rows that see nothing of the tile, nor of those before.
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(logits * scale - anchor[:, None])
    shrink = tl.exp2(peak - anchor)
    if len(total.shape) == 2:
        total = total * shrink[:, None] + weights
    else:
        total = total * shrink + tl.sum(weights, axis=1)
    v = _load(values + place, there, whole).to(q.dtype)
    acc = tl.dot(weights.to(q.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, total, new_peak

"""Per-head norm, RoPE, and the K/V write, as functions that kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_heads(
    x, weight, angles, inside, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROTARY: tl.constexpr, NEIGHBOURS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Loads the inputs of :func:`rotated`, all at once, because none depends on another: columns of the heads
    (``[heads, BLOCK]``) and of the norm's weight, each also in the order of their RoPE partners, so that no data moves
    between threads; then cosine and sine.

    ``x`` points to each head, ``angles`` to its row of :func:`llmk.reference.rope.rotation.rope`'s ``cos_sin``;
    ``inside`` masks the heads that exist. Partners are half of ``ROTARY`` apart or, with ``NEIGHBOURS``, next to each
    other.
    """
    column = tl.arange(0, BLOCK)
    here = inside[:, None] & (column < SIZE)[None, :]
    half: tl.constexpr = ROTARY // 2
    turned = column < ROTARY
    if NEIGHBOURS:
        angle = column // 2
        other = tl.where(turned, column ^ 1, column)
    else:
        lower = column < half
        angle = tl.where(lower, column, column - half)
        other = tl.where(lower, column + half, tl.where(turned, angle, column))
        if ROTARY > 0 and half % 8 == 0:
            other = tl.max_contiguous(tl.multiple_of(other, 8), 8)
            angle = tl.max_contiguous(tl.multiple_of(angle, 8), 8)
    left = tl.load(x[:, None] + column[None, :], here, other=0.0)
    right, scale, scale_right, cos, sin = left, left, left, left, left
    if HAS_WEIGHT:
        scale = tl.load(weight + column, column < SIZE, other=0.0)
        scale_right = tl.load(weight + other, column < SIZE, other=0.0)
    if ROTARY > 0:
        right = tl.load(x[:, None] + other[None, :], here, other=0.0)
        there = inside[:, None] & turned[None, :]
        cos = tl.load(angles[:, None] + angle[None, :], there, other=1.0)
        sin = tl.load(angles[:, None] + half + angle[None, :], there, other=0.0)
    return left, right, scale, scale_right, cos, sin


@triton.jit
def _normed(x, scale, factor, like, OFFSET: tl.constexpr):
    """``x * factor * (OFFSET + scale)`` with the roundings of :func:`llmk.reference.norms.rms_norm`."""
    if OFFSET != 0.0:
        return (x * factor[:, None] * (OFFSET + scale.to(tl.float32))[None, :]).to(like.dtype).to(tl.float32)
    x = (x * factor[:, None]).to(like.dtype).to(tl.float32)
    return (x * scale.to(tl.float32)[None, :]).to(like.dtype).to(tl.float32)


@triton.jit
def _root_mean_square(x, EPS: tl.constexpr, SIZE: tl.constexpr):
    """What the heads' elements are multiplied by, so that their mean square is 1."""
    return tl.rsqrt(tl.sum(x * x, axis=1) / SIZE + EPS)


@triton.jit
def rotated(
    heads, EPS: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr, NEIGHBOURS: tl.constexpr,
    NORM_AFTER: tl.constexpr, HAS_WEIGHT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Applies norm (if there is a weight, to which ``OFFSET`` is added) and RoPE to the result of :func:`load_heads`:
    float32 ``[heads, BLOCK]``, zeros beyond ``SIZE``. ``ROTARY`` 0 skips RoPE; with ``NORM_AFTER`` it comes first."""
    like, right, scale, scale_right, cos, sin = heads
    left, right = like.to(tl.float32), right.to(tl.float32)
    if HAS_WEIGHT and not NORM_AFTER:
        factor = _root_mean_square(left, EPS, SIZE)
        left = _normed(left, scale, factor, like, OFFSET)
        right = _normed(right, scale_right, factor, like, OFFSET)
    if ROTARY > 0:
        column = tl.arange(0, like.shape[1])
        first = column % 2 == 0 if NEIGHBOURS else column < ROTARY // 2
        left = left * cos + tl.where(first, -1.0, 1.0)[None, :] * right * sin
    if HAS_WEIGHT and NORM_AFTER:
        left = left.to(like.dtype).to(tl.float32)
        left = _normed(left, scale, _root_mean_square(left, EPS, SIZE), like, OFFSET)
    return left


@triton.jit
def kept(x, scale, like):
    """``x`` in the dtype that ``like`` points to; for fp8, divided by ``scale`` and clamped."""
    if like.dtype.element_ty.primitive_bitwidth == 8:
        return tl.clamp(x.to(tl.float32) / scale, -448.0, 448.0).to(like.dtype.element_ty)
    else:
        return x.to(like.dtype.element_ty)


@triton.jit
def store_new(
    k, v, cache, slot, stride_block, stride_kind, stride_token, k_scale, v_scale,
    SIZE: tl.constexpr, VALUE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Stores keys and values (``[heads, columns]``, of which ``SIZE`` and ``VALUE`` exist) in each head's ``slot``;
    slots below 0 are skipped. ``cache`` points to each head's entries in block 0."""
    there, slot = (slot >= 0)[:, None], tl.maximum(slot, 0)
    place = (cache + slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token)[:, None]
    column = tl.arange(0, k.shape[1])
    tl.store(place + column[None, :], kept(k, k_scale, cache), there & (column < SIZE)[None, :])
    column = tl.arange(0, v.shape[1])
    tl.store(place + column[None, :] + stride_kind, kept(v, v_scale, cache), there & (column < VALUE)[None, :])

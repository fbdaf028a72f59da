"""What happens to heads on their way to attention: per-head norm, rotary embedding, and the write to the cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _normed(x, weight, there, factor, like):
    """``x * factor * weight`` with the roundings of :func:`llmk.reference.norms.rms_norm`; ``weight`` are pointers."""
    x = (x * factor[:, None]).to(like.dtype.element_ty).to(tl.float32)
    scale = tl.load(weight, there, other=0.0).to(tl.float32)
    return (x * scale[None, :]).to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def rotated(
    x, weight, angles, inside, EPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROTARY: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Heads normed, where there is a weight, and rotated: float32 ``[heads, BLOCK]``, zeros beyond ``SIZE``.

    ``x`` points to each head, ``angles`` to the row of :func:`llmk.reference.rope.rope`'s ``cos_sin`` that it is
    rotated by; ``inside`` tells which heads there are. Columns are read twice, the second time as those that they are
    paired with, so that nothing passes between threads. ``ROTARY`` 0 rotates nothing.
    """
    column = tl.arange(0, BLOCK)
    here = inside[:, None] & (column < SIZE)[None, :]
    left = tl.load(x[:, None] + column[None, :], here, other=0.0).to(tl.float32)
    factor = tl.sum(left * left, axis=1)
    if HAS_WEIGHT:
        factor = tl.rsqrt(factor / SIZE + EPS)
        left = _normed(left, weight + column, column < SIZE, factor, x)
    if ROTARY > 0:
        half: tl.constexpr = ROTARY // 2
        lower, turned = column < half, column < ROTARY
        angle = tl.where(lower, column, column - half)
        other = tl.where(lower, column + half, tl.where(turned, angle, column))
        if half % 8 == 0:
            other = tl.max_contiguous(tl.multiple_of(other, 8), 8)
            angle = tl.max_contiguous(tl.multiple_of(angle, 8), 8)
        right = tl.load(x[:, None] + other[None, :], here, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            right = _normed(right, weight + other, column < SIZE, factor, x)
        there = inside[:, None] & turned[None, :]
        cos = tl.load(angles[:, None] + angle[None, :], there, other=1.0)
        sin = tl.load(angles[:, None] + half + angle[None, :], there, other=0.0)
        left = left * cos + tl.where(lower, -1.0, 1.0)[None, :] * right * sin
    return left


@triton.jit
def _kept(x, scale, like):
    """``x`` in the dtype that ``like`` points to; where that is fp8, divided by ``scale`` and kept within its range."""
    if like.dtype.element_ty.primitive_bitwidth == 8:
        return tl.clamp(x.to(tl.float32) / scale, -448.0, 448.0).to(like.dtype.element_ty)
    else:
        return x.to(like.dtype.element_ty)


@triton.jit
def store_new(
    key, value, weight, angles, cache, slot, stride_block, stride_kind, stride_token, k_scale, v_scale,
    EPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROTARY: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Norms and rotates the key heads that ``key`` points to, stores them and their values in ``slot``, and returns
    both as they are kept (``[heads, BLOCK]``). ``cache`` points to each head's place in block 0; nothing is stored
    where a slot is below 0."""
    column = tl.arange(0, BLOCK)
    inside = slot >= 0
    here = inside[:, None] & (column < SIZE)[None, :]
    slot = tl.maximum(slot, 0)
    place = (cache + slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token)[:, None] + column[None, :]
    k = _kept(rotated(key, weight, angles, inside, EPS, SIZE, BLOCK, ROTARY, HAS_WEIGHT), k_scale, cache)
    v = _kept(tl.load(value[:, None] + column[None, :], here, other=0.0), v_scale, cache)
    tl.store(place, k, here)
    tl.store(place + stride_kind, v, here)
    return k, v

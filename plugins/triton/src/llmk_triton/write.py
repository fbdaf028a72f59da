"""What happens to queries, keys and values on their way to attention: per-head norm, rotary embedding, and the write to
the cache, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from llmk_triton.attention import AttentionMeta

_HEADS = 4
"""Heads that a program takes: few, so that one token's heads already keep many programs busy."""


@triton.jit
def _part(x, weight, offset, column, count, inside, stride, HAS_WEIGHT: tl.constexpr):
    """Columns ``offset + column`` (below ``offset + count``) of some heads, and of their weight; float32."""
    there = inside[:, None] & (column < count)[None, :]
    head = tl.arange(0, inside.shape[0])
    values = tl.load(x + head[:, None] * stride + offset + column[None, :], there, other=0.0).to(tl.float32)
    scale = column.to(tl.float32)
    if HAS_WEIGHT:
        scale = tl.load(weight + offset + column, column < count, other=0.0).to(tl.float32)
    return values, scale


@triton.jit
def _normed(x, scale, factor, like):
    """``x * factor * scale`` with the roundings of :func:`llmk.reference.norms.rms_norm`."""
    x = (x * factor[:, None]).to(like.dtype.element_ty).to(tl.float32)
    return (x * scale[None, :]).to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _rotate(
    x, weight, out, cos_sin, inside, stride, out_stride,
    EPS: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Norms the heads at ``x``, where there is a weight, rotates them by ``cos_sin``, and stores them at ``out``.
    ``HALF >= ROTARY / 2`` columns are paired with as many; ``REST >= SIZE - ROTARY`` stay as they are."""
    half: tl.constexpr = ROTARY // 2
    column = tl.arange(0, HALF)
    left, left_scale = _part(x, weight, 0, column, half, inside, stride, HAS_WEIGHT)
    right, right_scale = _part(x, weight, half, column, half, inside, stride, HAS_WEIGHT)
    cos = tl.load(cos_sin + column, column < half, other=0.0)
    sin = tl.load(cos_sin + half + column, column < half, other=0.0)
    head = tl.arange(0, inside.shape[0])
    place = out + head[:, None] * out_stride + column[None, :]
    there = inside[:, None] & (column < half)[None, :]
    squares = tl.sum(left * left, axis=1) + tl.sum(right * right, axis=1)
    factor = squares
    if REST > 0:
        column = tl.arange(0, REST)
        rest, rest_scale = _part(x, weight, ROTARY, column, SIZE - ROTARY, inside, stride, HAS_WEIGHT)
        squares += tl.sum(rest * rest, axis=1)
    if HAS_WEIGHT:
        factor = tl.rsqrt(squares / SIZE + EPS)
        left, right = _normed(left, left_scale, factor, x), _normed(right, right_scale, factor, x)
    tl.store(place, (left * cos[None, :] - right * sin[None, :]).to(out.dtype.element_ty), there)
    tl.store(place + half, (right * cos[None, :] + left * sin[None, :]).to(out.dtype.element_ty), there)
    if REST > 0:
        if HAS_WEIGHT:
            rest = _normed(rest, rest_scale, factor, x)
        there = inside[:, None] & (column < SIZE - ROTARY)[None, :]
        place = out + head[:, None] * out_stride + ROTARY + column[None, :]
        tl.store(place, rest.to(out.dtype.element_ty), there)


@triton.jit
def _copy(x, out, inside, stride, out_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Copies heads from ``x`` to ``out``."""
    column = tl.arange(0, BLOCK)
    head = tl.arange(0, inside.shape[0])
    there = inside[:, None] & (column < SIZE)[None, :]
    values = tl.load(x + head[:, None] * stride + column[None, :], there)
    tl.store(out + head[:, None] * out_stride + column[None, :], values.to(out.dtype.element_ty), there)


@triton.jit
def _place(
    cache, slot_mapping, token, first, stride_block, stride_head, stride_token,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Where the keys of ``PART`` heads from ``first`` belong, and which of them there are: none for a slot below 0."""
    slot = tl.load(slot_mapping + token)
    inside = (first + tl.arange(0, PART) < KV_HEADS) & (slot >= 0)
    slot = tl.maximum(slot, 0)
    place = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token + first * stride_head
    return cache + place, inside


@triton.jit
def write_kernel(
    k, v, cache, slot_mapping, stride_k, stride_v, stride_block, stride_kind, stride_head, stride_token,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Stores keys and values. Programs are ``[tokens, parts of the heads]``; arguments as of
    :func:`rotate_and_write_kernel`."""
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * PART
    out, inside = _place(
        cache, slot_mapping, token, first, stride_block, stride_head, stride_token, KV_HEADS, BLOCK_SIZE, PART
    )
    _copy(k + token * stride_k + first * SIZE, out, inside, SIZE, stride_head, SIZE, BLOCK)
    _copy(v + token * stride_v + first * SIZE, out + stride_kind, inside, SIZE, stride_head, SIZE, BLOCK)


@triton.jit
def rotate_and_write_kernel(
    q, k, v, q_weight, k_weight, new_q, cache, positions, cos_sin, slot_mapping, stride_q, stride_k, stride_v,
    stride_block, stride_kind, stride_head, stride_token,
    EPS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr,
    HALF: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, PART: tl.constexpr,
    Q_WEIGHT: tl.constexpr, K_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Programs are ``[tokens, parts of the query heads, then parts of the key heads]``; a part has ``PART`` heads.

    ``q`` is ``[tokens, HEADS, SIZE]``, ``k`` and ``v`` ``[tokens, KV_HEADS, SIZE]``, contiguous but along tokens;
    ``new_q`` is contiguous. Slots below 0 are not written.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts: tl.constexpr = (HEADS + PART - 1) // PART
    angles = cos_sin + tl.load(positions + token) * ROTARY
    if part < parts:
        first = part * PART
        inside = first + tl.arange(0, PART) < HEADS
        x = q + token * stride_q + first * SIZE
        out = new_q + (token * HEADS + first) * SIZE
        _rotate(
            x, q_weight, out, angles, inside, SIZE, SIZE, EPS, SIZE, ROTARY, HALF, REST, Q_WEIGHT
        )  # fmt: skip
    else:
        first = (part - parts) * PART
        out, inside = _place(
            cache, slot_mapping, token, first, stride_block, stride_head, stride_token, KV_HEADS, BLOCK_SIZE, PART
        )
        x = k + token * stride_k + first * SIZE
        _rotate(
            x, k_weight, out, angles, inside, SIZE, stride_head, EPS, SIZE, ROTARY, HALF, REST, K_WEIGHT
        )  # fmt: skip
        x = v + token * stride_v + first * SIZE
        _copy(x, out + stride_kind, inside, SIZE, stride_head, SIZE, BLOCK)


def write(key: Tensor, value: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim]``) in ``cache`` (layout of
    :class:`~llmk_triton.attention.TritonAttention`) at ``slot_mapping`` (int64 ``[tokens]``), in place."""
    key, value = _rows(key), _rows(value)
    tokens, kv_heads, size = key.shape
    if tokens:
        write_kernel[(tokens, triton.cdiv(kv_heads, _HEADS))](
            key,
            value,
            cache,
            slot_mapping,
            key.stride(0),
            value.stride(0),
            *cache.stride()[:4],
            kv_heads,
            size,
            triton.next_power_of_2(size),
            cache.shape[3],
            _HEADS,
            num_warps=1,
        )


def qk_norm_rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
) -> Tensor:
    """As :func:`llmk.reference.composites.make_qk_norm_rope_write_kv` has it, with the meta of ``triton.attention``."""
    q, k, v = _rows(q), _rows(k), _rows(v)
    tokens, heads, size = q.shape
    kv_heads, rotary = k.shape[1], cos_sin.shape[1]
    new_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not tokens:
        return new_q
    rest = size - rotary
    rotate_and_write_kernel[(tokens, triton.cdiv(heads, _HEADS) + triton.cdiv(kv_heads, _HEADS))](
        q,
        k,
        v,
        q if q_weight is None else q_weight,
        k if k_weight is None else k_weight,
        new_q,
        cache,
        positions,
        cos_sin,
        meta.step.slot_mapping,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        *cache.stride()[:4],
        eps,
        heads,
        kv_heads,
        size,
        rotary,
        triton.next_power_of_2(rotary // 2),
        triton.next_power_of_2(rest) if rest else 0,
        triton.next_power_of_2(size),
        cache.shape[3],
        _HEADS,
        q_weight is not None,
        k_weight is not None,
        num_warps=1,
    )
    return new_q


def _rows(x: Tensor) -> Tensor:
    """``x`` (``[tokens, heads, size]``), contiguous but along tokens."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()

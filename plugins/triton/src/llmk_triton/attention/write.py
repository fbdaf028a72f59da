"""Per-head norm, RoPE and K/V write in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.attention.rotary import load_heads, rotated, store_new
from llmk_triton.common import pdl

if TYPE_CHECKING:
    from llmk_triton.attention.backend import AttentionMeta

_HEADS = 4
"""Heads per program of the K/V write: few, so that even one token gives many programs."""

_ROTATED = 2048
"""Elements per program of RoPE, in whole heads. With 512 elements and one warp, starting the programs took a third of
the time at 8,192 tokens (H200)."""


@triton.jit
def write_kernel(
    k, v, cache, slot_mapping, stride_k, stride_v, stride_block, stride_kind, stride_head, stride_token, k_scale,
    v_scale,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Stores keys and values. The grid is ``[tokens, parts of the heads]``; arguments as in
    :func:`rotate_and_write_kernel`."""
    pdl.release(PDL)
    pdl.wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * PART + tl.arange(0, PART)
    column, own = tl.arange(0, BLOCK), tl.arange(0, VALUE_BLOCK)
    slot = tl.where(head < KV_HEADS, tl.load(slot_mapping + token), -1)
    there = (slot >= 0)[:, None]
    key = tl.load((k + token * stride_k + head * SIZE)[:, None] + column[None, :], there & (column < SIZE), other=0.0)
    value = tl.load((v + token * stride_v + head * VALUE)[:, None] + own[None, :], there & (own < VALUE), other=0.0)
    to = cache + head.to(tl.int64) * stride_head
    store_new(key, value, to, slot, stride_block, stride_kind, stride_token, k_scale, v_scale, SIZE, VALUE, BLOCK_SIZE)


@triton.jit
def rotate_and_write_kernel(
    q, k, v, q_weight, k_weight, new_q, cache, positions, cos_sin, slot_mapping, stride_q, stride_k, stride_v,
    stride_block, stride_kind, stride_head, stride_token, k_scale, v_scale,
    EPS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr,
    BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, PART: tl.constexpr,
    NEIGHBOURS: tl.constexpr, NORM_AFTER: tl.constexpr, Q_WEIGHT: tl.constexpr, K_WEIGHT: tl.constexpr,
    OFFSET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The grid is ``[tokens, parts of the query heads + parts of the K/V heads]``; a part has ``PART`` heads.

    ``q`` is ``[tokens, HEADS, SIZE]``, ``k`` ``[tokens, KV_HEADS, SIZE]`` and ``v`` ``[tokens, KV_HEADS, VALUE]``,
    contiguous except along tokens; ``new_q`` is contiguous. Slots below 0 are not written.
    """
    pdl.release(PDL)
    pdl.wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts: tl.constexpr = (HEADS + PART - 1) // PART
    angles = cos_sin + (tl.load(positions + token) + tl.zeros([PART], tl.int64)) * ROTARY
    column = tl.arange(0, BLOCK)
    if part < parts:
        head = part * PART + tl.arange(0, PART)
        inside = head < HEADS
        mine = q + token * stride_q + head * SIZE
        heads = load_heads(mine, q_weight, angles, inside, SIZE, BLOCK, ROTARY, NEIGHBOURS, Q_WEIGHT)
        x = rotated(heads, EPS, SIZE, ROTARY, NEIGHBOURS, NORM_AFTER, Q_WEIGHT, OFFSET)
        place = new_q + (token * HEADS + head)[:, None] * SIZE + column[None, :]
        tl.store(place, x.to(new_q.dtype.element_ty), inside[:, None] & (column < SIZE)[None, :])
    else:
        head = (part - parts) * PART + tl.arange(0, PART)
        slot = tl.where(head < KV_HEADS, tl.load(slot_mapping + token), -1)
        own = tl.arange(0, VALUE_BLOCK)
        here = (slot >= 0)[:, None] & (own < VALUE)[None, :]
        key, value = k + token * stride_k + head * SIZE, v + token * stride_v + head * VALUE
        heads = load_heads(key, k_weight, angles, slot >= 0, SIZE, BLOCK, ROTARY, NEIGHBOURS, K_WEIGHT)
        new_v = tl.load(value[:, None] + own[None, :], here, other=0.0)
        new_k = rotated(heads, EPS, SIZE, ROTARY, NEIGHBOURS, NORM_AFTER, K_WEIGHT, OFFSET)
        to = cache + head.to(tl.int64) * stride_head
        store_new(
            new_k, new_v, to, slot, stride_block, stride_kind, stride_token, k_scale, v_scale, SIZE, VALUE, BLOCK_SIZE
        )


def write(key: Tensor, value: Tensor, cache: Tensor, slot_mapping: Tensor, scales: tuple[float, float]) -> None:
    """Stores ``key`` and ``value`` (``[tokens, kv_heads, head_dim or value_dim]``) in ``cache`` (layout of
    :class:`~llmk_triton.attention.backend.TritonAttention`) at ``slot_mapping`` (int64 ``[tokens]``), in place. For an
    fp8 cache, they are divided by ``scales``."""
    key, value = rows(key), rows(value)
    tokens, kv_heads, size = key.shape
    wide = value.shape[2]
    if tokens:
        write_kernel[(tokens, triton.cdiv(kv_heads, _HEADS))](
            key,
            value,
            cache,
            slot_mapping,
            key.stride(0),
            value.stride(0),
            *strides(cache, size),
            *scales,
            kv_heads,
            size,
            triton.next_power_of_2(size),
            wide,
            triton.next_power_of_2(wide),
            cache.shape[-2],
            _HEADS,
            num_warps=1,
            **pdl.options(),
        )


def qk_norm_rope_write_kv(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor | None,
    cache: Tensor,
    meta: AttentionMeta,
    scales: tuple[float, float] = (1.0, 1.0),
    *,
    norm_offset: float = 0.0,
    neighbours: bool = False,
    norm_after_rope: bool = False,
) -> Tensor:
    """Implements :func:`llmk.reference.composites.make_qk_norm_rope_write_kv` with the metadata of
    ``triton.attention``."""
    q = rows(q)
    tokens, heads, size = q.shape
    kv_heads = 0 if k is None else k.shape[1]
    k, v = (q if each is None else rows(each) for each in (k, v))  # not read where there are none
    new_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not tokens:
        return new_q
    block = triton.next_power_of_2(size)
    part = max(1, _ROTATED // block)
    rotate_and_write_kernel[(tokens, triton.cdiv(heads, part) + triton.cdiv(kv_heads, part))](
        q,
        k,
        v,
        q if q_weight is None else q_weight,
        k if k_weight is None else k_weight,
        new_q,
        cache,
        positions,
        positions if cos_sin is None else cos_sin,
        meta.step.slot_mapping,
        *(q.stride(0), k.stride(0), v.stride(0), *strides(cache, size)),
        *scales,
        eps,
        heads,
        kv_heads,
        size,
        0 if cos_sin is None else cos_sin.shape[1],
        block,
        v.shape[2],
        triton.next_power_of_2(v.shape[2]),
        cache.shape[-2],
        part,
        neighbours,
        norm_after_rope,
        q_weight is not None,
        k_weight is not None,
        norm_offset,
        num_warps=2,
        **pdl.options(),
    )
    return new_q


def rows(x: Tensor) -> Tensor:
    """``x`` (``[tokens, heads, size]``), contiguous except along tokens."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def strides(cache: Tensor, head_dim: int) -> tuple[int, int, int, int]:
    """Of a cache (layout of :class:`~llmk_triton.attention.backend.TritonAttention`): from block to block, from key to
    value, from head to head, and from token to token."""
    if cache.dim() == 5:
        block, kind, head, token, _ = cache.stride()
        return block, kind, head, token
    block, head, token, _ = cache.stride()
    return block, head_dim, head, token

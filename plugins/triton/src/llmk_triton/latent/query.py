"""What precedes attention, in one launch: queries are rotated and absorb the key projection; latent vectors are normed,
their shared keys rotated, and both written to the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.attention.rotary import kept
from llmk_triton.attention.write import rows
from llmk_triton.common import pdl
from llmk_triton.common.norms import normed
from llmk_triton.common.targets import current_target, dot_precision, latent_query_tile

_WRITTEN = 2048
"""Elements of latent vectors per program that writes them, in whole rows."""


@triton.jit
def _rotated(x, angles, inside, ROPE: tl.constexpr, ROPE_BLOCK: tl.constexpr):
    """Loads ``ROPE`` elements at each of the pointers ``x`` and rotates neighbours
    (:func:`llmk.reference.rope.rotation.rope_interleaved`): float32 ``[rows, ROPE_BLOCK]``. ``angles`` points to the
    rows of ``cos_sin``."""
    column = tl.arange(0, ROPE_BLOCK)
    there = inside[:, None] & (column < ROPE)[None, :]
    left = tl.load(x[:, None] + column[None, :], there, other=0.0).to(tl.float32)
    right = tl.load(x[:, None] + (column ^ 1)[None, :], there, other=0.0).to(tl.float32)
    cos = tl.load(angles[:, None] + (column // 2)[None, :], there, other=0.0)
    sin = tl.load(angles[:, None] + ROPE // 2 + (column // 2)[None, :], there, other=0.0)
    sign = tl.where(column % 2 == 0, -1.0, 1.0)
    return left * cos + sign[None, :] * right * sin


@triton.jit
def _places(cache, slot, stride_block, stride_token, BLOCK_SIZE: tl.constexpr):
    """Pointers to the rows of the cache at ``slot``; slots below 0 are as 0."""
    slot = tl.maximum(slot, 0)
    return cache + slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token


@triton.jit
def _write_rows(
    cache, latent, weight, angles, slot, stride_block, stride_token, like, EPS: tl.constexpr,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Norms the vectors at the pointers ``latent`` and rotates the keys behind them, both rounded to the dtype that
    ``like`` points to, and writes them to ``slot``."""
    inside = slot >= 0
    column, turned = tl.arange(0, BLOCK), tl.arange(0, ROPE_BLOCK)
    here = inside[:, None] & (column < LATENT)[None, :]
    factor = tl.load(weight + column, column < LATENT, other=0.0).to(tl.float32)
    x = tl.load(latent[:, None] + column[None, :], here, other=0.0).to(tl.float32)
    to = _places(cache, slot, stride_block, stride_token, BLOCK_SIZE)
    tl.store(to[:, None] + column[None, :], kept(normed(x, factor, like, EPS, LATENT, 0.0), 1.0, cache), here)
    if ROPE > 0:
        key = _rotated(latent + LATENT, angles, inside, ROPE, ROPE_BLOCK).to(like.dtype.element_ty)
        there = inside[:, None] & (turned < ROPE)[None, :]
        tl.store(to[:, None] + LATENT + turned[None, :], kept(key, 1.0, cache), there)


@triton.jit
def _absorb(
    query, q, up, column, inside, KEY: tl.constexpr, LATENT: tl.constexpr, KEY_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Stores the GEMM of the rows at the pointers ``q`` (``[rows, KEY]``) and some columns of ``up`` (``[KEY,
    LATENT]``) at the pointers ``query``. The weight is loaded before earlier kernels have finished."""
    inner = tl.arange(0, KEY_BLOCK)
    there = (column < LATENT)[None, :]
    weight = tl.load(up + inner[:, None] * LATENT + column[None, :], (inner < KEY)[:, None] & there, other=0.0)
    pdl.wait(PDL)
    x = tl.load(q[:, None] + inner[None, :], inside[:, None] & (inner < KEY)[None, :], other=0.0)
    found = tl.dot(x, weight, input_precision=PRECISION).to(query.dtype.element_ty)
    tl.store(query[:, None] + column[None, :], found, inside[:, None] & there)


@triton.jit(do_not_specialize=["num_tokens"])
def latent_query_kernel(
    query, cache, q, latent, k_up, weight, positions, cos_sin, slot_mapping, num_tokens, stride_q, stride_latent,
    stride_block, stride_token, EPS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, LATENT: tl.constexpr,
    ABSORB: tl.constexpr, ROPE: tl.constexpr, KEY_BLOCK: tl.constexpr, BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WRITTEN: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first programs of the grid write ``WRITTEN`` tokens each to the cache. Of the others, each computes for
    ``ROWS`` tokens and one head either ``COLUMNS`` columns of the absorbed query, or its rotated part.

    ``q`` is ``[tokens, HEADS, KEY + ROPE]``, ``k_up`` ``[HEADS, KEY, LATENT]``, ``query`` ``[tokens, HEADS, LATENT +
    ROPE]``; without ``ABSORB``, ``[tokens, HEADS, ROPE]``, as queries are only rotated. ``latent`` is ``[tokens,
    LATENT + ROPE]``, ``weight`` that of its norm. Slots below 0 are not written.
    """
    pdl.release(PDL)
    absorbed: tl.constexpr = LATENT if ABSORB else 0
    tiles: tl.constexpr = (absorbed + COLUMNS - 1) // COLUMNS
    parts: tl.constexpr = tiles + (1 if ROPE > 0 else 0)
    program = tl.program_id(0) - tl.cdiv(num_tokens, WRITTEN)
    if program < 0:
        pdl.wait(PDL)
        new = tl.program_id(0).to(tl.int64) * WRITTEN + tl.arange(0, WRITTEN)
        slot = tl.load(slot_mapping + new, new < num_tokens, other=-1)
        _write_rows(
            cache, latent + new * stride_latent, weight,
            cos_sin + tl.load(positions + new, slot >= 0, other=0) * ROPE, slot, stride_block, stride_token,
            query, EPS, LATENT, ROPE, BLOCK, ROPE_BLOCK, BLOCK_SIZE,
        )  # fmt: skip
    else:
        token = (program // (parts * HEADS)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        head, part = program // parts % HEADS, program % parts
        inside = token < num_tokens
        source = q + token * stride_q + head * (KEY + ROPE)
        to = query + (token * HEADS + head) * (absorbed + ROPE)
        if part < tiles:
            column = part * COLUMNS + tl.arange(0, COLUMNS)
            up = k_up + head.to(tl.int64) * KEY * LATENT
            _absorb(to, source, up, column, inside, KEY, LATENT, KEY_BLOCK, PRECISION, PDL)
        else:
            pdl.wait(PDL)
            if ROPE > 0:
                turned = tl.arange(0, ROPE_BLOCK)
                angles = cos_sin + tl.load(positions + token, inside, other=0) * ROPE
                x = _rotated(source + KEY, angles, inside, ROPE, ROPE_BLOCK).to(query.dtype.element_ty)
                tl.store(to[:, None] + absorbed + turned[None, :], x, inside[:, None] & (turned < ROPE)[None, :])


@dataclass(frozen=True, slots=True)
class NewLatents:
    """A step's latent vectors with the shared key, ``[tokens, latent_dim + rotary_dim]``, and the inputs of norm and
    RoPE; arguments of :func:`llmk.reference.composites.make_norm_rope_write_latent`'s op."""

    latent: Tensor
    weight: Tensor
    eps: float
    positions: Tensor
    cos_sin: Tensor
    slot_mapping: Tensor


def prepare_queries(q: Tensor, k_up: Tensor | None, new: NewLatents, cache: Tensor) -> Tensor:
    """Writes the new latent rows to ``cache`` (``[blocks, block_size, row]``), and returns the queries over it.

    Args:
        q: ``[tokens, heads, key_dim + rotary_dim]``, not yet rotated.
        k_up: ``[heads, key_dim, latent_dim]``; ``None``: queries don't absorb it.

    Returns:
        ``[tokens, heads, latent_dim + rotary_dim]``; without ``k_up``, ``[tokens, heads, rotary_dim]``.
    """
    q = rows(q)
    latent = new.latent if new.latent.stride(1) == 1 else new.latent.contiguous()
    tokens, heads, width = q.shape
    rank, rope = new.weight.shape[0], new.cos_sin.shape[1]
    key = width - rope
    query = torch.empty(tokens, heads, (0 if k_up is None else rank) + rope, dtype=q.dtype, device=q.device)
    if not tokens:
        return query
    block = max(16, triton.next_power_of_2(rank))
    tile = latent_query_tile(tokens)
    parts = (0 if k_up is None else triton.cdiv(rank, tile.columns)) + (rope > 0)
    written = max(1, _WRITTEN // block)
    grid = triton.cdiv(tokens, written) + triton.cdiv(tokens, tile.rows) * heads * parts
    latent_query_kernel[(grid,)](
        query,
        cache,
        q,
        latent,
        q if k_up is None else k_up,
        new.weight,
        new.positions,
        new.cos_sin,
        new.slot_mapping,
        tokens,
        q.stride(0),
        latent.stride(0),
        *cache.stride()[:2],
        EPS=new.eps,
        HEADS=heads,
        KEY=key,
        LATENT=rank,
        ABSORB=k_up is not None,
        ROPE=rope,
        KEY_BLOCK=max(16, triton.next_power_of_2(key)),
        BLOCK=block,
        ROPE_BLOCK=max(2, triton.next_power_of_2(rope)),
        BLOCK_SIZE=cache.shape[1],
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        WRITTEN=written,
        PRECISION=dot_precision(current_target()),
        num_warps=tile.warps,
        num_stages=1,
        **pdl.options(),
    )
    return query


@triton.jit
def write_latent_kernel(
    key, cache, slot_mapping, stride_key, stride_block, stride_token, scale,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Stores one row per program; slots below 0 are skipped."""
    pdl.release(PDL)
    pdl.wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    slot = tl.load(slot_mapping + token)
    here = (column < SIZE) & (slot >= 0)
    row = tl.load(key + token * stride_key + column, here, other=0.0)
    tl.store(_places(cache, slot, stride_block, stride_token, BLOCK_SIZE) + column, kept(row, scale, cache), here)


def write(key: Tensor, cache: Tensor, slot_mapping: Tensor, scale: float) -> None:
    """Stores ``key`` (``[tokens, 1, row]``) in ``cache`` (``[blocks, block_size, row]``) at ``slot_mapping`` (int64
    ``[tokens]``), in place. For an fp8 cache, it is divided by ``scale``."""
    key = rows(key)
    tokens, _, size = key.shape
    if tokens:
        write_latent_kernel[(tokens,)](
            key,
            cache,
            slot_mapping,
            key.stride(0),
            *cache.stride()[:2],
            scale,
            SIZE=size,
            BLOCK=triton.next_power_of_2(size),
            BLOCK_SIZE=cache.shape[1],
            num_warps=4,
            **pdl.options(),
        )

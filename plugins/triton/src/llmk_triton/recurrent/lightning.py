"""Lightning attention (arXiv:2405.17381). Offsets of tokens and blocks have 64 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk.reference.recurrent.tails import with_accepted
from llmk_triton.common import pdl
from llmk_triton.common.targets import current_target, dot_precision
from llmk_triton.recurrent.runs import (
    block_after,
    block_before,
    chunk_bounds,
    clear_padding,
    is_kept,
    num_chunks,
    rounded,
    run_of,
    with_padding,
)
from llmk_triton.recurrent.state_space_chunks import scan_chunk
from llmk_triton.recurrent.tiles import chunk_tile, state_rows, warps_for

_ALL = 1 << 30
_FEW = 8
"""Most tokens of a request that are computed one by one."""
_CHUNK = 32
"""Most tokens of a chunk. With 64, warp groups multiply from registers, and heads of 96 came out wrong on an H100 by
Triton 3.6."""


@triton.jit
def _activated(x, inside):
    """SiLU of what the pointers ``x`` point to, float32 and rounded to its dtype."""
    wide = tl.load(x, inside, other=0.0).to(tl.float32)
    return rounded(wide / (1.0 + tl.exp(-wide)), x)


@triton.jit(do_not_specialize=["table_stride", "block_size", "longest"])
def lightning_tokens_kernel(
    q, k, v, q_row, k_row, v_row, q_head, k_head, v_head, decay, cache, query_start, seq_lens, block_table, num_drafts,
    out, cache_stride, table_stride, block_size, longest,
    HEADS: tl.constexpr, SIZE: tl.constexpr, HAS_DRAFTS: tl.constexpr, ALIKE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Requests with at most ``longest`` tokens. A program has ``ROWS`` rows of the state ``[SIZE, SIZE]`` of one head
    of one request; the grid is ``[parts of heads, requests]``."""
    head = tl.program_id(0) // tl.cdiv(SIZE, ROWS)
    row = tl.program_id(0) % tl.cdiv(SIZE, ROWS) * ROWS + tl.arange(0, ROWS)
    column, request = tl.arange(0, COLUMNS), tl.program_id(1)
    has_row, has_column = row < SIZE, column < SIZE
    fading = tl.exp(tl.load(decay + head))
    pdl.release(PDL)
    pdl.wait(PDL)
    if ALIKE:
        clear_padding(out, query_start, head * SIZE + row, has_row, HEADS * SIZE)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if (count > 0) & (count <= longest):
        block = block_before(block_table, table_stride, request, before, block_size)
        inside = has_row[:, None] & has_column[None, :]
        place = (head * SIZE + row)[:, None] * SIZE + column[None, :]
        state = tl.load(cache + block * cache_stride + place, inside & (before > 0), other=0.0).to(tl.float32)
        for at in tl.range(0, count):
            token = first + at
            query = _activated(q + token * q_row + head * q_head + column, has_column)
            key = _activated(k + token * k_row + head * k_head + column, has_column)
            value = _activated(v + token * v_row + head * v_head + row, has_row)
            state = fading * state + value[:, None] * key[None, :]
            y = tl.sum(state * query[None, :], axis=1)
            tl.store(out + (token * HEADS + head) * SIZE + row, y.to(out.dtype.element_ty), has_row)
            if is_kept(at + 1, before, known, block_size):
                to = block_after(block_table, table_stride, request, before + at + 1, block_size)
                tl.store(cache + to * cache_stride + place, state.to(cache.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["table_stride", "block_size", "longest"])
def lightning_chunks_kernel(
    q, k, v, q_row, k_row, v_row, q_head, k_head, v_head, decay, cache, query_start, seq_lens, block_table, num_drafts,
    out, cache_stride, table_stride, block_size, longest,
    HEADS: tl.constexpr, SIZE: tl.constexpr, HAS_DRAFTS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Requests with more than ``longest`` tokens, chunk by chunk; as :func:`lightning_tokens_kernel`."""
    head = tl.program_id(0) // tl.cdiv(SIZE, ROWS)
    row = tl.program_id(0) % tl.cdiv(SIZE, ROWS) * ROWS + tl.arange(0, ROWS)
    column, place, request = tl.arange(0, COLUMNS), tl.arange(0, CHUNK), tl.program_id(1)
    rate = tl.load(decay + head)
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if count > longest:
        block = block_before(block_table, table_stride, request, before, block_size)
        has_row, has_column = row < SIZE, column < SIZE
        inside = has_column[:, None] & has_row[None, :]
        at = (head * SIZE + row)[None, :] * SIZE + column[:, None]
        state = tl.load(cache + block * cache_stride + at, inside & (before > 0), other=0.0).to(tl.float32)
        like: tl.constexpr = out.dtype.element_ty
        for chunk in tl.range(0, num_chunks(count, before, known, block_size, CHUNK)):
            start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
            token, there = first + start + place, start + place < stop
            both, own = there[:, None] & has_column[None, :], there[:, None] & has_row[None, :]
            query = _activated(q + token[:, None] * q_row + (head * q_head + column)[None, :], both).to(like)
            key = _activated(k + token[:, None] * k_row + (head * k_head + column)[None, :], both).to(like)
            value = _activated(v + token[:, None] * v_row + (head * v_head + row)[None, :], own).to(like)
            size = there.to(tl.float32)
            y, state = scan_chunk(state, value, key, query, size * rate, size, 0.0, PRECISION)
            to = out + (token * HEADS + head)[:, None] * SIZE + row[None, :]
            tl.store(to, y.to(like), own)
            if is_kept(stop, before, known, block_size):
                kept = block_after(block_table, table_stride, request, before + stop, block_size)
                tl.store(cache + kept * cache_stride + at, state.to(cache.dtype.element_ty), inside)


def lightning_attention(*arguments: Any) -> Tensor:
    """As ``lightning_attention`` of :mod:`llmk.reference.recurrent.mixers`, in one launch; for prompts, a second, which
    computes chunks."""
    return _attend(*arguments, longest=_FEW)


def lightning_attention_by_token(*arguments: Any) -> Tensor:
    """As :func:`lightning_attention`, but token by token, in one launch. Batch-invariant."""
    return _attend(*arguments, longest=_ALL)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, caches: tuple[Tensor, ...], step: CacheStep, *, longest: int
) -> Tensor:
    """Requests with more than ``longest`` tokens are computed in chunks."""
    rows, (heads, size) = None, q.shape[1:]
    if step.tails is not None:
        given, step, rows = with_accepted([part.flatten(1) for part in (q, k, v)], caches[1:], step)
        q, k, v = (part.unflatten(1, (heads, size)) for part in given)
    cache, out = caches[0], with_padding(step, heads * size, v)
    has_chunks = step.max_query_len > longest
    arguments = (
        *(q, k, v, q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), decay, cache),
        *(step.query_start, step.seq_lens, step.block_table),
        *(step.query_start if step.tails is None else step.tails.num_drafts, out, cache.stride(0)),
        *(step.block_table.stride(0), step.block_size),
    )
    shape = {"HEADS": heads, "SIZE": size, "HAS_DRAFTS": step.tails is not None, **pdl.options()}
    columns = triton.next_power_of_2(size)
    part = state_rows(size, heads * step.num_requests, columns, out.device)
    lightning_tokens_kernel[(heads * triton.cdiv(size, part), step.num_requests)](
        *arguments, longest if has_chunks else _ALL, **shape, ALIKE=step.num_tokens == step.num_requests, ROWS=part,
        COLUMNS=columns, num_warps=warps_for(part * columns), num_stages=1,
    )  # fmt: skip
    if has_chunks:
        target = current_target()
        tile = chunk_tile(target, size, heads * step.num_requests, out.device, size)
        tile = replace(tile, tokens=min(tile.tokens, _CHUNK))
        lightning_chunks_kernel[(heads * triton.cdiv(size, tile.rows), step.num_requests)](
            *arguments, longest, **shape, CHUNK=tile.tokens, ROWS=tile.rows, COLUMNS=max(16, columns),
            PRECISION=dot_precision(target), num_warps=tile.warps, num_stages=2,
        )  # fmt: skip
    return out if rows is None else out[rows]

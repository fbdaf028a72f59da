"""The selective scan of Mamba-2 in chunks (state space duality, arXiv:2405.21060): what tokens of a chunk add to each
other is a matrix product, and so is what the state before it adds to them, and what they add to the state."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl
from llmk_triton.common.targets import current_target, dot_precision
from llmk_triton.recurrent.runs import block_after, block_before, chunk_bounds, is_kept, num_chunks, run_of
from llmk_triton.recurrent.state_space_tokens import step_size
from llmk_triton.recurrent.tiles import chunk_tile


@triton.jit
def scan_chunk(state, x, b, c, log_decay, size, skip, PRECISION: tl.constexpr):
    """The outputs (float32 ``[tokens, rows]``) of a chunk, and the state after it (float32 ``[columns, rows]``).

    ``x`` is ``[tokens, rows]``, ``b`` and ``c`` are ``[tokens, columns]``, zeros where there is no token; ``log_decay``
    and ``size`` are those of each token.
    """
    token = tl.arange(0, x.shape[0])
    total = tl.cumsum(log_decay, 0)
    last = tl.sum(log_decay, 0)
    scores = tl.dot(c, tl.trans(b), input_precision=PRECISION)
    between = tl.exp(tl.minimum(total[:, None] - total[None, :], 0.0)) * size[None, :]
    scores = tl.where(token[:, None] >= token[None, :], scores * between, 0.0)
    y = tl.dot(c, state.to(c.dtype), input_precision=PRECISION) * tl.exp(total)[:, None]
    y = tl.dot(scores.to(x.dtype), x, y, input_precision=PRECISION)
    wide = x.to(tl.float32)
    scaled = (wide * (size * tl.exp(last - total))[:, None]).to(x.dtype)
    state = tl.dot(tl.trans(b), scaled, state * tl.exp(last), input_precision=PRECISION)
    return y + skip * wide, state


@triton.jit(do_not_specialize=["table_stride", "block_size", "longest"])
def scan_chunks_kernel(
    mixed, dt, a, d, dt_bias, cache, query_start, seq_lens, block_table, num_drafts, out, dt_row, cache_stride,
    table_stride, block_size, longest,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, LEAST: tl.constexpr,
    MOST: tl.constexpr, HAS_MOST: tl.constexpr, HAS_DRAFTS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The scan of requests with more than ``longest`` tokens, whose convolution is ``mixed``. A program has ``ROWS``
    rows of the state ``[HEAD_DIM, SIZE]`` of one head of one request; the grid is ``[parts of heads, requests]``."""
    head = tl.program_id(0) // tl.cdiv(HEAD_DIM, ROWS)
    row = tl.program_id(0) % tl.cdiv(HEAD_DIM, ROWS) * ROWS + tl.arange(0, ROWS)
    column, place = tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    request = tl.program_id(1)
    inner: tl.constexpr = HEADS * HEAD_DIM
    channels: tl.constexpr = inner + 2 * GROUPS * SIZE
    rate, skip, bias = tl.load(a + head), tl.load(d + head), tl.load(dt_bias + head)
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if count > longest:
        block = block_before(block_table, table_stride, request, before, block_size)
        has_row, has_column = row < HEAD_DIM, column < SIZE
        inside = has_column[:, None] & has_row[None, :]
        at = (head * HEAD_DIM + row)[None, :] * SIZE + column[:, None]
        state = tl.load(cache + block * cache_stride + at, inside & (before > 0), other=0.0).to(tl.float32)
        x_channel = head * HEAD_DIM + row
        b_channel = inner + head // (HEADS // GROUPS) * SIZE + column
        for chunk in tl.range(0, num_chunks(count, before, known, block_size, CHUNK)):
            start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
            token, there = first + start + place, start + place < stop
            vectors = mixed + token[:, None] * channels + b_channel[None, :]
            both = there[:, None] & has_column[None, :]
            b = tl.load(vectors, both, other=0.0)
            c = tl.load(vectors + GROUPS * SIZE, both, other=0.0)
            own = there[:, None] & has_row[None, :]
            x = tl.load(mixed + token[:, None] * channels + x_channel[None, :], own, other=0.0)
            size = step_size(tl.load(dt + token * dt_row + head, there, other=0.0), bias, LEAST, MOST, HAS_MOST)
            size = tl.where(there, size, 0.0)
            y, state = scan_chunk(state, x, b, c, size * rate, size, skip, PRECISION)
            tl.store(out + token[:, None] * inner + x_channel[None, :], y.to(out.dtype.element_ty), own)
            if is_kept(stop, before, known, block_size):
                to = block_after(block_table, table_stride, request, before + stop, block_size)
                tl.store(cache + to * cache_stride + at, state.to(cache.dtype.element_ty), inside)


def scan_chunks(
    mixed: Tensor,
    dt: Tensor,
    a: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    dt_limits: tuple[float, float | None],
    cache: Tensor,
    step: CacheStep,
    out: Tensor,
    *,
    longest: int,
) -> None:
    """``state_space_scan`` of the convolution ``mixed`` (``[tokens, channels]``, contiguous), for requests with more
    than ``longest`` tokens, into ``out`` ``[tokens, heads, head_dim]``."""
    _, heads, head_dim, size = cache.shape
    groups = (mixed.shape[1] - heads * head_dim) // (2 * size)
    target = current_target()
    tile = chunk_tile(target, head_dim, heads * step.num_requests, out.device, size)
    least, most = dt_limits
    scan_chunks_kernel[(heads * triton.cdiv(head_dim, tile.rows), step.num_requests)](
        mixed, dt, a, d, dt_bias, cache, step.query_start, step.seq_lens, step.block_table,
        step.query_start if step.tails is None else step.tails.num_drafts, out, dt.stride(0), cache.stride(0),
        step.block_table.stride(0), step.block_size, longest, HEADS=heads, HEAD_DIM=head_dim, GROUPS=groups, SIZE=size,
        LEAST=float(least), MOST=0.0 if most is None else float(most), HAS_MOST=most is not None,
        HAS_DRAFTS=step.tails is not None, CHUNK=tile.tokens, ROWS=tile.rows,
        COLUMNS=max(16, triton.next_power_of_2(size)), PRECISION=dot_precision(target),
        num_warps=tile.warps, num_stages=2, **pdl.options(),
    )  # fmt: skip

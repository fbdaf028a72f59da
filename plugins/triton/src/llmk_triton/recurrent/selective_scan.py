"""Mamba-1's selective scan: every channel has decays of its own. Offsets of tokens and blocks have 64 bits."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl
from llmk_triton.recurrent.runs import (
    block_after,
    block_before,
    chunk_bounds,
    clear_padding,
    is_kept,
    num_chunks,
    run_of,
    softplus,
    with_padding,
)
from llmk_triton.recurrent.tiles import state_rows, warps_for

_ALL = 1 << 30
_FEW = 8
"""Most tokens of a request that are computed one by one."""
_CHUNK = 32
"""Tokens that are scanned at once."""
_CHUNK_ELEMENTS = 4096
"""Of the decays and states of a chunk in one program's registers."""


@triton.jit
def _gated(y, gate):
    return y * (gate / (1.0 + tl.exp(-gate)))


@triton.jit(do_not_specialize=["gate_row", "b_row", "c_row", "table_stride", "block_size", "longest"])
def scan_tokens_kernel(
    x, dt, a, b, c, d, dt_bias, gate, cache, query_start, seq_lens, block_table, out, gate_row, b_row, c_row,
    cache_stride, table_stride, block_size, longest,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, ALIKE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Requests with at most ``longest`` tokens. A program has the states of ``ROWS`` channels of a request; the grid is
    ``[parts of the channels, requests]``."""
    channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column, request = tl.arange(0, COLUMNS), tl.program_id(1)
    inside, has_column = channel < CHANNELS, column < SIZE
    both, place = inside[:, None] & has_column[None, :], channel[:, None] * SIZE + column[None, :]
    rate = tl.load(a + place, both, other=0.0)
    skip, bias = tl.load(d + channel, inside, other=0.0), tl.load(dt_bias + channel, inside, other=0.0)
    pdl.release(PDL)
    pdl.wait(PDL)
    if ALIKE:
        clear_padding(out, query_start, channel, inside, CHANNELS)
    first, count, before, known = run_of(query_start, seq_lens, query_start, request, False)
    if (count > 0) & (count <= longest):
        block = block_before(block_table, table_stride, request, before, block_size)
        state = tl.load(cache + block * cache_stride + place, both & (before > 0), other=0.0).to(tl.float32)
        for at in tl.range(0, count):
            token = first + at
            value = tl.load(x + token * CHANNELS + channel, inside, other=0.0).to(tl.float32)
            size = softplus(tl.load(dt + token * CHANNELS + channel, inside, other=0.0).to(tl.float32) + bias)
            write = tl.load(b + token * b_row + column, has_column, other=0.0).to(tl.float32)
            read = tl.load(c + token * c_row + column, has_column, other=0.0).to(tl.float32)
            state = tl.exp(size[:, None] * rate) * state + (size * value)[:, None] * write[None, :]
            y = tl.sum(state * read[None, :], axis=1) + skip * value
            y = _gated(y, tl.load(gate + token * gate_row + channel, inside, other=0.0).to(tl.float32))
            tl.store(out + token * CHANNELS + channel, y.to(out.dtype.element_ty), inside)
            if is_kept(at + 1, before, known, block_size):
                to = block_after(block_table, table_stride, request, before + at + 1, block_size)
                tl.store(cache + to * cache_stride + place, state.to(cache.dtype.element_ty), both)


@triton.jit
def _then(decay, added, later_decay, later_added):
    """Two steps of ``S = decay * S + added`` as one."""
    return decay * later_decay, later_decay * added + later_added


@triton.jit(do_not_specialize=["gate_row", "b_row", "c_row", "table_stride", "block_size", "longest"])
def scan_chunks_kernel(
    x, dt, a, b, c, d, dt_bias, gate, cache, query_start, seq_lens, block_table, out, gate_row, b_row, c_row,
    cache_stride, table_stride, block_size, longest,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Requests with more than ``longest`` tokens, ``CHUNK`` of them at once by a parallel scan; as
    :func:`scan_tokens_kernel`."""
    channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column, request, at = tl.arange(0, COLUMNS), tl.program_id(1), tl.arange(0, CHUNK)
    inside, has_column = channel < CHANNELS, column < SIZE
    both, place = inside[:, None] & has_column[None, :], channel[:, None] * SIZE + column[None, :]
    rate = tl.load(a + place, both, other=0.0)
    skip, bias = tl.load(d + channel, inside, other=0.0), tl.load(dt_bias + channel, inside, other=0.0)
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, query_start, request, False)
    if count > longest:
        block = block_before(block_table, table_stride, request, before, block_size)
        state = tl.load(cache + block * cache_stride + place, both & (before > 0), other=0.0).to(tl.float32)
        for chunk in tl.range(0, num_chunks(count, before, known, block_size, CHUNK)):
            start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
            token, there = first + start + at, start + at < stop
            own, vectors = there[:, None] & inside[None, :], there[:, None] & has_column[None, :]
            to = token[:, None] * CHANNELS + channel[None, :]
            value = tl.load(x + to, own, other=0.0).to(tl.float32)
            size = softplus(tl.load(dt + to, own, other=0.0).to(tl.float32) + bias[None, :])
            size = tl.where(there[:, None], size, 0.0)
            write = tl.load(b + token[:, None] * b_row + column[None, :], vectors, other=0.0).to(tl.float32)
            read = tl.load(c + token[:, None] * c_row + column[None, :], vectors, other=0.0).to(tl.float32)
            decay = tl.exp(size[:, :, None] * rate[None, :, :])
            added = (size * value)[:, :, None] * write[:, None, :]
            decay, added = tl.associative_scan((decay, added), 0, _then)
            states = decay * state[None, :, :] + added
            y = tl.sum(states * read[:, None, :], axis=2) + skip[None, :] * value
            gates = tl.load(gate + token[:, None] * gate_row + channel[None, :], own, other=0.0).to(tl.float32)
            tl.store(out + to, _gated(y, gates).to(out.dtype.element_ty), own)
            # Where there is no token, the step size is 0, so the last state is that after the last token.
            state = tl.sum(tl.where((at == CHUNK - 1)[:, None, None], states, 0.0), axis=0)
            if is_kept(stop, before, known, block_size):
                kept = block_after(block_table, table_stride, request, before + stop, block_size)
                tl.store(cache + kept * cache_stride + place, state.to(cache.dtype.element_ty), both)


def selective_scan(*arguments: Any) -> Tensor:
    """As :func:`llmk.reference.recurrent.selective_scan.selective_scan`: one launch; for prompts, a second, which scans
    chunks."""
    return _scan(*arguments, longest=_FEW)


def selective_scan_by_token(*arguments: Any) -> Tensor:
    """As :func:`selective_scan`, but token by token, in one launch. Batch-invariant."""
    return _scan(*arguments, longest=_ALL)


def _scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    gate: Tensor,
    cache: Tensor,
    step: CacheStep,
    *,
    longest: int,
) -> Tensor:
    """Requests with more than ``longest`` tokens are computed in chunks."""
    x, dt, a = x.contiguous(), dt.contiguous(), a.contiguous()
    b, c, gate = (rows if rows.stride(1) == 1 else rows.contiguous() for rows in (b, c, gate))
    channels, size = a.shape
    out, columns = with_padding(step, channels, x), triton.next_power_of_2(size)
    given = (x, dt, a, b, c, d, dt_bias, gate, cache, step.query_start, step.seq_lens, step.block_table, out)
    strides = (gate.stride(0), b.stride(0), c.stride(0), cache.stride(0), step.block_table.stride(0), step.block_size)
    own = {"CHANNELS": channels, "SIZE": size, "COLUMNS": columns, **pdl.options()}
    has_chunks = step.max_query_len > longest
    rows = state_rows(channels, step.num_requests, columns, out.device)
    scan_tokens_kernel[(triton.cdiv(channels, rows), step.num_requests)](
        *given, *strides, longest if has_chunks else _ALL, **own, ALIKE=step.num_tokens == step.num_requests,
        ROWS=rows, num_warps=warps_for(rows * columns), num_stages=1,
    )  # fmt: skip
    if has_chunks:
        rows = max(1, _CHUNK_ELEMENTS // (_CHUNK * columns))
        scan_chunks_kernel[(triton.cdiv(channels, rows), step.num_requests)](
            *given, *strides, longest, **own, CHUNK=_CHUNK, ROWS=rows, num_warps=4, num_stages=1
        )
    return out

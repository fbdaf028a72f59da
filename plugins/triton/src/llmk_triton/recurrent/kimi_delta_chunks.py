"""Kimi delta attention in chunks (KDA, arXiv:2510.26692): as :mod:`llmk_triton.recurrent.delta_chunks`, where each
element of a key decays by itself.

Decays are then part of the sums over elements of queries and keys. Between two blocks of 16 tokens, those of the later
one are counted from its start, those of the earlier one up to it, so that no exponential is above 1 and pairs are a
GEMM. Pairs within a block are computed one by one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl
from llmk_triton.common.targets import current_target, dot_precision
from llmk_triton.recurrent.delta_chunks import inverse_norms, inverse_of, most_chunks
from llmk_triton.recurrent.runs import (
    block_after,
    block_before,
    chunk_bounds,
    chunk_in_step,
    chunks_of_requests,
    is_kept,
    log_decay,
    num_chunks,
    request_room,
    run_of,
)
from llmk_triton.recurrent.tiles import chunk_tile

_BLOCK = 16
"""Tokens of a block, and the size of the blocks on the system's diagonal that are inverted row by row."""


@triton.jit
def _log_decays(
    a, a_row, token, there, head_at, column, rate, bias, KEY_DIM: tl.constexpr, BOUND: tl.constexpr
):  # fmt: skip
    """The log decays of each ``token`` (int64) and each element of a key, 0 where nothing is: float32."""
    inside = there[:, None] & (column < KEY_DIM)[None, :]
    given = tl.load(a + token[:, None] * a_row + (head_at + column)[None, :], inside, other=0.0)
    return tl.where(inside, log_decay(given, rate, bias[None, :], BOUND), 0.0)


@triton.jit(do_not_specialize=["num_requests", "block_size", "longest"])
def kimi_scores_kernel(
    mixed, a, b, a_row, a_head, b_row, b_head, decay, dt_bias, query_start, seq_lens, num_drafts, num_requests,
    block_size, longest, system, scores,
    HEADS: tl.constexpr, SHARED_BY: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HAS_DRAFTS: tl.constexpr, REQUESTS: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    BOUND: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of a block of tokens of a chunk and a head, how much each reads of the writes of all tokens of the chunk
    (``scores``), and how much each write takes from the others (``system``, float32), both ``[tokens, HEADS, CHUNK]``.
    The grid is ``[heads, most chunks, blocks of a chunk]``."""
    head, block = tl.program_id(0), tl.program_id(2)
    key_head, shared = head // SHARED_BY, head % SHARED_BY
    channels: tl.constexpr = 2 * KEYS + HEADS * VALUE_DIM
    column = tl.arange(0, COLUMNS)
    rate, bias = tl.load(decay + head), tl.load(dt_bias + head * KEY_DIM + column, column < KEY_DIM, other=0.0)
    pdl.release(PDL)
    pdl.wait(PDL)
    request, chunk = chunk_in_step(
        tl.program_id(1), query_start, seq_lens, num_drafts, num_requests, block_size, longest, HAS_DRAFTS, CHUNK,
        REQUESTS,
    )  # fmt: skip
    if request < num_requests:
        first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
        start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
        offset = block * BLOCK
        if start + offset < stop:
            head_at, key_at = key_head * a_head + shared * KEY_DIM, mixed + key_head * KEY_DIM
            has_column = column < KEY_DIM
            # The tokens before the block, then its own.
            place = tl.arange(0, CHUNK)
            token, there = first + start + place, place < offset
            faded = _log_decays(a, a_row, token, there, head_at, column, rate, bias, KEY_DIM, BOUND)
            rest = tl.sum(faded, 0)[None, :] - tl.cumsum(faded, 0)
            inside = there[:, None] & has_column[None, :]
            earlier = tl.load(key_at + KEYS + token[:, None] * channels + column[None, :], inside, other=0.0)
            like = earlier.dtype
            scaled = earlier.to(tl.float32) * inverse_norms(earlier)[:, None] * tl.exp(tl.minimum(rest, 0.0))
            earlier = tl.trans(scaled.to(like))
            own = tl.arange(0, BLOCK)
            row, here = first + start + offset + own, start + offset + own < stop
            total = tl.cumsum(_log_decays(a, a_row, row, here, head_at, column, rate, bias, KEY_DIM, BOUND), 0)
            inside = here[:, None] & has_column[None, :]
            at = key_at + row[:, None] * channels + column[None, :]
            q, k = tl.load(at, inside, other=0.0), tl.load(at + KEYS, inside, other=0.0)
            q = q.to(tl.float32) * (inverse_norms(q) * KEY_DIM**-0.5)[:, None]
            k = k.to(tl.float32) * inverse_norms(k)[:, None]
            fading = tl.exp(total)
            read = tl.dot((q * fading).to(like), earlier, input_precision=PRECISION)
            taken = tl.dot((k * fading).to(like), earlier, input_precision=PRECISION)
            for other in tl.static_range(BLOCK):
                is_other = (own == other)[:, None]
                key, since = tl.sum(tl.where(is_other, k, 0.0), 0), tl.sum(tl.where(is_other, total, 0.0), 0)
                weighted = key[None, :] * tl.exp(tl.minimum(total - since[None, :], 0.0))
                there = (place == offset + other)[None, :]
                read += tl.where(there & (own >= other)[:, None], tl.sum(q * weighted, 1)[:, None], 0.0)
                taken += tl.where(there & (own > other)[:, None], tl.sum(k * weighted, 1)[:, None], 0.0)
            beta = tl.sigmoid(tl.load(b + row * b_row + key_head * b_head + shared, here, other=0.0).to(tl.float32))
            to = (row * HEADS + head)[:, None] * CHUNK + place[None, :]
            tl.store(scores + to, read.to(scores.dtype.element_ty), here[:, None])
            tl.store(system + to, taken * beta[:, None], here[:, None])


@triton.jit(do_not_specialize=["num_requests", "block_size", "longest"])
def kimi_writes_kernel(
    mixed, a, b, a_row, a_head, b_row, b_head, decay, dt_bias, query_start, seq_lens, num_drafts, num_requests,
    block_size, longest, system, values, keys, readers, writers, fades,
    HEADS: tl.constexpr, SHARED_BY: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HAS_DRAFTS: tl.constexpr, REQUESTS: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, BOUND: tl.constexpr, PRECISION: tl.constexpr, INNER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What a chunk writes to the state of a head, but for what depends on it: ``values`` and ``keys`` as
    :class:`llmk_triton.recurrent.delta_chunks.Writes` has them; ``readers``, the queries with the decays since the
    start of the chunk, and ``writers``, the keys with those up to its end, ``[tokens, HEADS, KEY_DIM]``; and ``fades``,
    those of the whole chunk, float32 ``[chunks, HEADS, KEY_DIM]``. The grid is ``[heads, most chunks]``."""
    head, number = tl.program_id(0), tl.program_id(1)
    key_head, shared = head // SHARED_BY, head % SHARED_BY
    channels: tl.constexpr = 2 * KEYS + HEADS * VALUE_DIM
    column, width, place = tl.arange(0, COLUMNS), tl.arange(0, WIDTH), tl.arange(0, CHUNK)
    rate, bias = tl.load(decay + head), tl.load(dt_bias + head * KEY_DIM + column, column < KEY_DIM, other=0.0)
    pdl.release(PDL)
    pdl.wait(PDL)
    request, chunk = chunk_in_step(
        number, query_start, seq_lens, num_drafts, num_requests, block_size, longest, HAS_DRAFTS, CHUNK, REQUESTS
    )
    if request < num_requests:
        first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
        start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
        token, there = first + start + place, start + place < stop
        has_column = column < KEY_DIM
        inside = there[:, None] & has_column[None, :]
        head_at = key_head * a_head + shared * KEY_DIM
        faded = _log_decays(a, a_row, token, there, head_at, column, rate, bias, KEY_DIM, BOUND)
        total, last = tl.cumsum(faded, 0), tl.sum(faded, 0)
        given = tl.load(b + token * b_row + key_head * b_head + shared, there, other=0.0).to(tl.float32)
        beta = tl.where(there, tl.sigmoid(given), 0.0)
        at = mixed + token[:, None] * channels + (key_head * KEY_DIM + column)[None, :]
        q, k = tl.load(at, inside, other=0.0), tl.load(at + KEYS, inside, other=0.0)
        like = k.dtype
        q = q.to(tl.float32) * (inverse_norms(q) * KEY_DIM**-0.5)[:, None]
        k = k.to(tl.float32) * inverse_norms(k)[:, None]
        where = token * HEADS + head
        to = where[:, None] * KEY_DIM + column[None, :]
        tl.store(readers + to, (q * tl.exp(total)).to(readers.dtype.element_ty), inside)
        tl.store(writers + to, (k * tl.exp(tl.minimum(last[None, :] - total, 0.0))).to(like), inside)
        tl.store(fades + (number.to(tl.int64) * HEADS + head) * KEY_DIM + column, tl.exp(last), has_column)
        rows = tl.load(system + where[:, None] * CHUNK + place[None, :], there[:, None], other=0.0)
        inverse = inverse_of(rows, CHUNK, BLOCK, INNER).to(like)
        scaled = (k * tl.exp(total) * beta[:, None]).to(like)
        tl.store(keys + to, tl.dot(inverse, scaled, input_precision=PRECISION).to(keys.dtype.element_ty), inside)
        inside = there[:, None] & (width < VALUE_DIM)[None, :]
        of_value = (2 * KEYS + head * VALUE_DIM + width)[None, :]
        v = tl.load(mixed + token[:, None] * channels + of_value, inside, other=0.0)
        written = tl.dot(inverse, (v.to(tl.float32) * beta[:, None]).to(like), input_precision=PRECISION)
        to = where[:, None] * VALUE_DIM + width[None, :]
        tl.store(values + to, written.to(values.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["num_requests", "table_stride", "block_size", "longest"])
def kimi_chunks_kernel(
    values, keys, readers, writers, scores, fades, cache, query_start, seq_lens, block_table, num_drafts, out,
    cache_stride, table_stride, num_requests, block_size, longest,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, HAS_DRAFTS: tl.constexpr,
    REQUESTS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """From chunk to chunk of requests with more than ``longest`` tokens. A program has ``ROWS`` rows of the state
    ``[VALUE_DIM, KEY_DIM]`` of one head of one request; the grid is ``[parts of heads, requests]``."""
    head = tl.program_id(0) // tl.cdiv(VALUE_DIM, ROWS)
    row = tl.program_id(0) % tl.cdiv(VALUE_DIM, ROWS) * ROWS + tl.arange(0, ROWS)
    column, place = tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    request = tl.program_id(1)
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if count > longest:
        chunks = chunks_of_requests(
            query_start, seq_lens, num_drafts, num_requests, block_size, longest, HAS_DRAFTS, CHUNK, REQUESTS
        )
        number = tl.sum(tl.where(tl.arange(0, REQUESTS) < request, chunks, 0), 0).to(tl.int64)
        block = block_before(block_table, table_stride, request, before, block_size)
        has_row, has_column = row < VALUE_DIM, column < KEY_DIM
        inside = has_column[:, None] & has_row[None, :]
        at = (head * VALUE_DIM + row)[None, :] * KEY_DIM + column[:, None]
        state = tl.load(cache + block * cache_stride + at, inside & (before > 0), other=0.0).to(tl.float32)
        for chunk in tl.range(0, num_chunks(count, before, known, block_size, CHUNK)):
            start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
            token, there = first + start + place, start + place < stop
            where = token * HEADS + head
            both, own = there[:, None] & has_column[None, :], there[:, None] & has_row[None, :]
            vectors = where[:, None] * KEY_DIM + column[None, :]
            keyed = tl.load(keys + vectors, both, other=0.0)
            q, k = tl.load(readers + vectors, both, other=0.0), tl.load(writers + vectors, both, other=0.0)
            new = tl.load(values + where[:, None] * VALUE_DIM + row[None, :], own, other=0.0).to(tl.float32)
            weights = tl.load(scores + where[:, None] * CHUNK + place[None, :], there[:, None], other=0.0)
            faded = tl.load(fades + ((number + chunk) * HEADS + head) * KEY_DIM + column, has_column, other=0.0)
            known_state = state.to(k.dtype)
            new -= tl.dot(keyed, known_state, input_precision=PRECISION)
            added = new.to(k.dtype)
            y = tl.dot(q, known_state, input_precision=PRECISION)
            y = tl.dot(weights, added, y, input_precision=PRECISION)
            state = tl.dot(tl.trans(k), added, state * faded[:, None], input_precision=PRECISION)
            to = out + where[:, None] * VALUE_DIM + row[None, :]
            tl.store(to, y.to(out.dtype.element_ty), own)
            if is_kept(stop, before, known, block_size):
                kept = block_after(block_table, table_stride, request, before + stop, block_size)
                tl.store(cache + kept * cache_stride + at, state.to(cache.dtype.element_ty), inside)


def kimi_delta_chunks(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    decay: Tensor,
    dt_bias: Tensor,
    cache: Tensor,
    step: CacheStep,
    out: Tensor,
    *,
    longest: int,
    decay_bound: float | None,
) -> None:
    """As :func:`llmk_triton.recurrent.delta_chunks.delta_chunks`; ``a`` is ``[tokens, key_heads, heads / key_heads,
    key_dim]`` with contiguous last dimensions, ``dt_bias`` ``[heads, key_dim]``."""
    _, heads, value_dim, key_dim = cache.shape
    target, tokens, requests = current_target(), step.num_tokens, step.num_requests
    tile = chunk_tile(target, value_dim, heads * requests, out.device)
    most = most_chunks(step, tile.tokens, longest)
    values, system = torch.empty_like(out), out.new_empty(tokens, heads, tile.tokens, dtype=torch.float32)
    keys, readers, writers = (out.new_empty(tokens, heads, key_dim) for _ in range(3))
    scores = out.new_empty(tokens, heads, tile.tokens)
    fades = out.new_empty(most, heads, key_dim, dtype=torch.float32)
    precision = dot_precision(target)
    shape: dict[str, Any] = {
        "HEADS": heads,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "HAS_DRAFTS": step.tails is not None,
        "REQUESTS": request_room(requests),
        "CHUNK": tile.tokens,
        "COLUMNS": max(16, triton.next_power_of_2(key_dim)),
        "PRECISION": precision,
        **pdl.options(),
    }
    inner = {"SHARED_BY": a.shape[2], "KEYS": a.shape[1] * key_dim, "BLOCK": _BLOCK, "BOUND": decay_bound or 0.0}
    num_drafts = step.query_start if step.tails is None else step.tails.num_drafts
    where = step.query_start, step.seq_lens, num_drafts, requests, step.block_size, longest
    given = mixed, a, b, a.stride(0), a.stride(1), b.stride(0), b.stride(1), decay, dt_bias, *where
    kimi_scores_kernel[(heads, most, tile.tokens // _BLOCK)](
        *given, system, scores, **shape, **inner, num_warps=4, num_stages=1
    )
    kimi_writes_kernel[(heads, most)](
        *given, system, values, keys, readers, writers, fades, **shape, **inner,
        WIDTH=max(16, triton.next_power_of_2(value_dim)),
        INNER="tf32" if out.dtype.itemsize == 2 and target.backend == "cuda" else precision, num_warps=8, num_stages=1,
    )  # fmt: skip
    kimi_chunks_kernel[(heads * triton.cdiv(value_dim, tile.rows), requests)](
        values, keys, readers, writers, scores, fades, cache, step.query_start, step.seq_lens, step.block_table,
        num_drafts, out, cache.stride(0), step.block_table.stride(0), requests, step.block_size, longest, **shape,
        ROWS=tile.rows, num_warps=tile.warps, num_stages=2,
    )  # fmt: skip

"""The gated delta rule in chunks (arXiv:2412.06464). What each token writes depends linearly on what the earlier ones
wrote, so all writes of a chunk solve a triangular system, whose inverse does not depend on the state: one kernel
computes it for all chunks at once, another one then goes from chunk to chunk.

With unit keys ``k``, decays ``g`` from the start of the chunk, the ``inverse``, and the state ``S`` before the chunk,
the writes are ``inverse (beta v) - inverse (beta g k) S``: :class:`Writes` has both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.api import CacheStep
from llmk_triton.common import pdl
from llmk_triton.common.targets import current_target, dot_precision
from llmk_triton.recurrent.runs import (
    block_after,
    block_before,
    chunk_bounds,
    chunk_in_step,
    is_kept,
    num_chunks,
    request_room,
    run_of,
    softplus,
)
from llmk_triton.recurrent.tiles import chunk_tile

_SOLVED = 16
"""Size of the blocks on the system's diagonal that are inverted row by row."""


@triton.jit
def _inverse_of_blocks(system, CHUNK: tl.constexpr, SIZE: tl.constexpr):
    """The inverses of the blocks on the diagonal of ``1 + system``, row by row; zeros elsewhere. ``system`` is strictly
    lower triangular, float32 ``[CHUNK, CHUNK]``."""
    blocks: tl.constexpr = CHUNK // SIZE
    of_row, of_column = tl.arange(0, blocks)[:, None, None, None], tl.arange(0, blocks)[None, None, :, None]
    diagonal = of_row == of_column
    own = tl.sum(tl.where(diagonal, tl.reshape(system, (blocks, SIZE, blocks, SIZE)), 0.0), axis=2)
    inverse, row = -own, tl.arange(0, SIZE)[None, :, None]
    for i in tl.static_range(1, SIZE):
        here = tl.sum(tl.where(row == i, inverse, 0.0), axis=1)
        here += tl.sum(here[:, :, None] * inverse, axis=1)
        inverse = tl.where(row == i, here[:, None, :], inverse)
    inverse += tl.where(row == tl.arange(0, SIZE)[None, None, :], 1.0, 0.0)
    whole = tl.where(diagonal, inverse[:, :, None, :], 0.0)
    return tl.reshape(whole, (CHUNK, CHUNK))


@triton.jit
def inverse_of(system, CHUNK: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """The inverse of ``1 + system``, where ``system`` is strictly lower triangular, float32 ``[CHUNK, CHUNK]``.

    With ``D``, the inverse of the blocks on the diagonal, and ``N``, ``D`` times all other blocks, it is ``(1 - N) (1 +
    N N) D``, because the fourth power of ``N`` is zero for up to four blocks.
    """
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    blocks = _inverse_of_blocks(system, CHUNK, SIZE)
    others = tl.where(row // SIZE > column // SIZE, system, 0.0)
    between = tl.dot(blocks, others, input_precision=PRECISION)
    squared = tl.dot(between, blocks, input_precision=PRECISION)
    whole = tl.dot(between, squared, blocks, input_precision=PRECISION)
    return whole - tl.dot(between, whole, input_precision=PRECISION)


@triton.jit
def inverse_norms(x):
    """Of each row, one divided by its 2-norm."""
    wide = x.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6)


@triton.jit(do_not_specialize=["num_requests", "block_size", "longest", "num_tokens"])
def delta_writes_kernel(
    mixed, a, b, a_row, a_head, b_row, b_head, decay, dt_bias, query_start, seq_lens, num_drafts, num_requests,
    block_size, longest, num_tokens, values, keys, scores, factors,
    HEADS: tl.constexpr, SHARED_BY: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HAS_DRAFTS: tl.constexpr, REQUESTS: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    SOLVED: tl.constexpr, PRECISION: tl.constexpr, INNER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What :class:`Writes` has of a chunk and a head; the grid is ``[heads, most chunks]``."""
    head = tl.program_id(0)
    key_head, shared = head // SHARED_BY, head % SHARED_BY
    channels: tl.constexpr = 2 * KEYS + HEADS * VALUE_DIM
    rate, bias = tl.load(decay + head), tl.load(dt_bias + head)
    pdl.release(PDL)
    pdl.wait(PDL)
    request, chunk = chunk_in_step(
        tl.program_id(1), query_start, seq_lens, num_drafts, num_requests, block_size, longest, HAS_DRAFTS, CHUNK,
        REQUESTS,
    )  # fmt: skip
    if request < num_requests:
        first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
        start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
        place, column, width = tl.arange(0, CHUNK), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
        token, there = first + start + place, start + place < stop
        inside = there[:, None] & (column < KEY_DIM)[None, :]
        at = mixed + token[:, None] * channels + (key_head * KEY_DIM + column)[None, :]
        q, k = tl.load(at, inside, other=0.0), tl.load(at + KEYS, inside, other=0.0)
        scalar = key_head * a_head + shared
        given = tl.load(a + token * a_row + scalar, there, other=0.0).to(tl.float32)
        log_decay = tl.where(there, rate * softplus(given + bias), 0.0)
        given = tl.load(b + token * b_row + key_head * b_head + shared, there, other=0.0).to(tl.float32)
        beta = tl.where(there, tl.sigmoid(given), 0.0)
        total = tl.cumsum(log_decay, 0)
        last = tl.sum(log_decay, 0)
        q_scale, k_scale = inverse_norms(q) * KEY_DIM**-0.5, inverse_norms(k)
        between = tl.exp(tl.minimum(total[:, None] - total[None, :], 0.0)) * k_scale[None, :]
        system = tl.dot(k, tl.trans(k), input_precision=PRECISION) * between * (beta * k_scale)[:, None]
        system = tl.where(place[:, None] > place[None, :], system, 0.0)
        attended = tl.dot(q, tl.trans(k), input_precision=PRECISION) * between * q_scale[:, None]
        attended = tl.where(place[:, None] >= place[None, :], attended, 0.0)
        row = token * HEADS + head
        to = scores + row[:, None] * CHUNK + place[None, :]
        tl.store(to, attended.to(scores.dtype.element_ty), there[:, None])
        inverse = inverse_of(system, CHUNK, SOLVED, INNER).to(k.dtype)
        scaled = (k.to(tl.float32) * (beta * k_scale * tl.exp(total))[:, None]).to(k.dtype)
        written = tl.dot(inverse, scaled, input_precision=PRECISION)
        tl.store(keys + row[:, None] * KEY_DIM + column[None, :], written.to(keys.dtype.element_ty), inside)
        inside = there[:, None] & (width < VALUE_DIM)[None, :]
        v = tl.load(
            mixed + token[:, None] * channels + (2 * KEYS + head * VALUE_DIM + width)[None, :], inside, other=0.0
        )
        scaled = (v.to(tl.float32) * beta[:, None]).to(v.dtype)
        written = tl.dot(inverse, scaled, input_precision=PRECISION)
        tl.store(values + row[:, None] * VALUE_DIM + width[None, :], written.to(values.dtype.element_ty), inside)
        size = num_tokens.to(tl.int64) * HEADS
        tl.store(factors + row, q_scale * tl.exp(total), there)
        tl.store(factors + size + row, k_scale * tl.exp(last - total), there)
        tl.store(factors + 2 * size + row, total, there)


@triton.jit(do_not_specialize=["table_stride", "block_size", "longest", "num_tokens"])
def delta_chunks_kernel(
    mixed, values, keys, scores, factors, cache, query_start, seq_lens, block_table, num_drafts, out, cache_stride,
    table_stride, block_size, longest, num_tokens,
    HEADS: tl.constexpr, SHARED_BY: tl.constexpr, KEYS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HAS_DRAFTS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """From chunk to chunk of requests with more than ``longest`` tokens. A program has ``ROWS`` rows of the state
    ``[VALUE_DIM, KEY_DIM]`` of one head of one request; the grid is ``[parts of heads, requests]``."""
    head = tl.program_id(0) // tl.cdiv(VALUE_DIM, ROWS)
    row = tl.program_id(0) % tl.cdiv(VALUE_DIM, ROWS) * ROWS + tl.arange(0, ROWS)
    column, place = tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    request = tl.program_id(1)
    channels: tl.constexpr = 2 * KEYS + HEADS * VALUE_DIM
    pdl.release(PDL)
    pdl.wait(PDL)
    first, count, before, known = run_of(query_start, seq_lens, num_drafts, request, HAS_DRAFTS)
    if count > longest:
        block = block_before(block_table, table_stride, request, before, block_size)
        has_row, has_column = row < VALUE_DIM, column < KEY_DIM
        inside = has_column[:, None] & has_row[None, :]
        at = (head * VALUE_DIM + row)[None, :] * KEY_DIM + column[:, None]
        state = tl.load(cache + block * cache_stride + at, inside & (before > 0), other=0.0).to(tl.float32)
        key_channel = head // SHARED_BY * KEY_DIM + column
        size = num_tokens.to(tl.int64) * HEADS
        for chunk in tl.range(0, num_chunks(count, before, known, block_size, CHUNK)):
            start, stop = chunk_bounds(chunk, count, before, known, block_size, CHUNK)
            token, there = first + start + place, start + place < stop
            where = token * HEADS + head
            both, own = there[:, None] & has_column[None, :], there[:, None] & has_row[None, :]
            keyed = tl.load(keys + where[:, None] * KEY_DIM + column[None, :], both, other=0.0)
            new = tl.load(values + where[:, None] * VALUE_DIM + row[None, :], own, other=0.0).to(tl.float32)
            vectors = mixed + token[:, None] * channels + key_channel[None, :]
            q, k = tl.load(vectors, both, other=0.0), tl.load(vectors + KEYS, both, other=0.0)
            weights = tl.load(scores + where[:, None] * CHUNK + place[None, :], there[:, None], other=0.0)
            q_factor = tl.load(factors + where, there, other=0.0)
            k_factor = tl.load(factors + size + where, there, other=0.0)
            last = tl.load(factors + 2 * size + (first + stop - 1) * HEADS + head)
            known_state = state.to(k.dtype)
            new -= tl.dot(keyed, known_state, input_precision=PRECISION)
            y = tl.dot(q, known_state, input_precision=PRECISION) * q_factor[:, None]
            y = tl.dot(weights, new.to(k.dtype), y, input_precision=PRECISION)
            added = (new * k_factor[:, None]).to(k.dtype)
            state = tl.dot(tl.trans(k), added, state * tl.exp(last), input_precision=PRECISION)
            to = out + where[:, None] * VALUE_DIM + row[None, :]
            tl.store(to, y.to(out.dtype.element_ty), own)
            if is_kept(stop, before, known, block_size):
                kept = block_after(block_table, table_stride, request, before + stop, block_size)
                tl.store(cache + kept * cache_stride + at, state.to(cache.dtype.element_ty), inside)


@dataclass(frozen=True, slots=True)
class Writes:
    """What a step's chunks write to the states, but for what depends on these.

    Attributes:
        values: ``[tokens, heads, value_dim]``, what they would write to a state of zeros.
        keys: ``[tokens, heads, key_dim]``, by which the state is multiplied that is subtracted from them.
        scores: ``[tokens, heads, chunk]``, how much each token reads of the writes of its chunk.
        factors: float32 ``[3, tokens, heads]``: of queries when they read the state before the chunk, and of keys when
            they write to the one after it; and the log decay from the start of the chunk.
    """

    values: Tensor
    keys: Tensor
    scores: Tensor
    factors: Tensor


def delta_chunks(
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
) -> None:
    """``gated_delta_rule`` of the convolution ``mixed`` (``[tokens, channels]``, contiguous), for requests with more
    than ``longest`` tokens, into ``out`` ``[tokens, heads, value_dim]``. ``a`` and ``b`` are ``[tokens, key_heads,
    heads / key_heads]``."""
    _, heads, value_dim, key_dim = cache.shape
    target, tokens, requests = current_target(), step.num_tokens, step.num_requests
    tile = chunk_tile(target, value_dim, heads * requests, out.device)
    writes = Writes(
        torch.empty_like(out),
        out.new_empty(tokens, heads, key_dim),
        out.new_empty(tokens, heads, tile.tokens),
        out.new_empty(3, tokens, heads, dtype=torch.float32),
    )
    precision = dot_precision(target)
    shape = {
        "HEADS": heads,
        "SHARED_BY": a.shape[2],
        "KEYS": a.shape[1] * key_dim,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "HAS_DRAFTS": step.tails is not None,
        "CHUNK": tile.tokens,
        "COLUMNS": max(16, triton.next_power_of_2(key_dim)),
        "PRECISION": precision,
        **pdl.options(),
    }
    tensors = writes.values, writes.keys, writes.scores, writes.factors
    num_drafts = step.query_start if step.tails is None else step.tails.num_drafts
    delta_writes_kernel[(heads, most_chunks(step, tile.tokens, longest))](
        mixed, a, b, a.stride(0), a.stride(1), b.stride(0), b.stride(1), decay, dt_bias, step.query_start,
        step.seq_lens, num_drafts, requests, step.block_size, longest, tokens, *tensors, **shape,
        REQUESTS=request_room(requests), WIDTH=max(16, triton.next_power_of_2(value_dim)), SOLVED=_SOLVED,
        INNER="tf32" if out.dtype.itemsize == 2 and target.backend == "cuda" else precision, num_warps=8, num_stages=1,
    )  # fmt: skip
    delta_chunks_kernel[(heads * triton.cdiv(value_dim, tile.rows), requests)](
        mixed, *tensors, cache, step.query_start, step.seq_lens, step.block_table, num_drafts, out, cache.stride(0),
        step.block_table.stride(0), step.block_size, longest, tokens, **shape, ROWS=tile.rows, num_warps=tile.warps,
        num_stages=2,
    )  # fmt: skip


def most_chunks(step: CacheStep, size: int, longest: int) -> int:
    """As many chunks of ``size`` tokens as a step's requests with more than ``longest`` tokens can have: all are full
    but the first and the last one of each request, those at the end of a block, and the first and last one of
    drafts."""
    requests = min(step.num_requests, step.num_tokens // (longest + 1))
    at_block_ends = step.num_tokens // step.block_size + requests
    each = 2 if step.tails is None else 4
    return min(step.num_tokens, step.num_tokens // size + at_block_ends + each * requests)

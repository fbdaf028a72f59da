"""Latent attention of requests with any number of queries in a step, with absorbed queries: prefill, chunked prefill,
and decode in mixed steps."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attention.prefill import find_request
from llmk_triton.attention.tile import blocks_of, finish_rows, scaled
from llmk_triton.common import pdl
from llmk_triton.latent.tile import attend_latents, load_queries

_COLUMNS = tl.constexpr(128)
"""Columns of the result that are merged at a time."""


@triton.jit
def _merge(
    out, partial, stats, count, inside, LATENT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the attention of a tile of queries over all keys at the pointers ``out``, given the partial results of
    ``count`` programs, each over its own keys. It takes some columns at a time, so that the registers do."""
    columns: tl.constexpr = min(BLOCK, _COLUMNS)
    row = tl.arange(0, ROWS)
    for first in tl.range(0, LATENT, columns):
        column = first + tl.arange(0, columns)
        acc = tl.zeros([ROWS, columns], tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        for part in tl.range(0, count):
            at = part * ROWS + row
            # Other programs wrote these, so they must be loaded from L2, not from this multiprocessor's L1.
            part_peak = tl.load(stats + 2 * at, cache_modifier=".cg")
            part_total = tl.load(stats + 2 * at + 1, cache_modifier=".cg")
            found = tl.load(partial + at[:, None] * BLOCK + column[None, :], cache_modifier=".cg")
            new_peak = tl.maximum(peak, part_peak)
            anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            kept, weight = tl.exp2(peak - anchor), tl.exp2(part_peak - anchor)
            acc = acc * kept[:, None] + found * weight[:, None]
            total = total * kept + part_total * weight
            peak = new_peak
        here = inside[:, None] & (column < LATENT)[None, :]
        tl.store(out + column[None, :], finish_rows(acc, total).to(out.dtype.element_ty), here)


@triton.jit(do_not_specialize=["num_requests", "stride_table"])
def latent_prefill_kernel(
    out, query, cache, query_start, seq_lens, block_table, starts, parts, places, arrived, partial, stats,
    num_requests, stride_query, stride_block, stride_token, stride_table, scale,
    SCALE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The grid is ``[at least as many programs as are scheduled, groups of GROUP heads]``. The rows of a program are
    ``ROWS // GROUP`` queries of one request times the heads of its group. Where a tile's keys are split, the last of
    its programs to finish merges the partial results.

    Arguments are those of :func:`llmk_triton.attention.prefill.prefill_kernel`, with groups of heads in place of K/V
    heads, and of :func:`llmk_triton.latent.decode.latent_decode_kernel`.
    """
    pdl.wait(PDL)
    pdl.release(PDL)
    queries: tl.constexpr = ROWS // GROUP
    group, groups = tl.program_id(1), tl.num_programs(1)
    # Later queries of a request see more keys. They start first, so that no long program starts last.
    program = tl.load(starts + num_requests) - 1 - tl.program_id(0)
    if program < 0:
        return
    request = find_request(starts, num_requests, program)
    item = program - tl.load(starts + request)
    count = tl.load(parts + request)
    first_row = tl.load(query_start + request)
    length = tl.load(query_start + request + 1) - first_row
    part = item % count
    first = item // count * queries
    seq_len = tl.load(seq_lens + request)
    context = seq_len - length

    row = tl.arange(0, ROWS)
    index = first + row // GROUP
    head = group * GROUP + row % GROUP
    inside = (row < queries * GROUP) & (index < length) & (head < HEADS)
    column = tl.arange(0, BLOCK)
    here = inside[:, None] & (column < LATENT)[None, :]
    token = (first_row + index).to(tl.int64)
    q, q_rope = load_queries(query, cache, token, head, inside, stride_query, scale, LATENT, ROPE, BLOCK, ROPE_BLOCK)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)

    table = block_table + request.to(tl.int64) * stride_table
    position = context + index
    stop = tl.minimum(seq_len, context + first + queries)
    each = tl.cdiv(tl.cdiv(stop, TILE), count) * TILE
    start = part * each
    stop = tl.minimum(stop, start + each)
    full = tl.maximum(start, tl.minimum((context + first + 1) // TILE * TILE, stop))
    block = blocks_of(table, start, 0, seq_len, BLOCK_SIZE, TILE)
    border = blocks_of(table, full, 0, seq_len, BLOCK_SIZE, TILE)
    for at in tl.range(start, full, TILE):
        following = blocks_of(table, at + TILE, 0, seq_len, BLOCK_SIZE, TILE)
        acc, total, peak = attend_latents(
            acc, total, peak, q, q_rope, cache, block, at, position, seq_len, stride_block, stride_token,
            SCALE, LATENT, ROPE, BLOCK_SIZE, TILE, PRECISION, False,
        )  # fmt: skip
        block = following
    block = border
    for at in tl.range(full, stop, TILE):
        following = blocks_of(table, at + TILE, 0, seq_len, BLOCK_SIZE, TILE)
        acc, total, peak = attend_latents(
            acc, total, peak, q, q_rope, cache, block, at, position, seq_len, stride_block, stride_token,
            SCALE, LATENT, ROPE, BLOCK_SIZE, TILE, PRECISION, True,
        )  # fmt: skip
        block = following
    acc = scaled(acc, scale, cache)
    place = out + (token * HEADS + head)[:, None] * LATENT
    if count == 1:
        tl.store(place + column[None, :], finish_rows(acc, total).to(out.dtype.element_ty), here)
    else:
        # The partial results of one tile and group of heads are contiguous.
        first_part = (tl.load(places + request) + item - part) * groups + group * count
        mine = (first_part + part).to(tl.int64) * ROWS + row
        tl.store(partial + mine[:, None] * BLOCK + column[None, :], acc)
        tl.store(stats + 2 * mine, peak)
        tl.store(stats + 2 * mine + 1, total)
        # All of the program's stores must be visible before its counter increments.
        tl.debug_barrier()
        tally = arrived + first_part
        if tl.atomic_add(tally, 1, sem="acq_rel") == count - 1:
            tl.store(tally, 0)
            own = first_part.to(tl.int64) * ROWS
            _merge(place, partial + own * BLOCK, stats + 2 * own, count, inside, LATENT, ROWS, BLOCK)

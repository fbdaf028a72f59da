"""Attention of requests with any number of queries in a step: prefill, chunked prefill, and decode in mixed steps."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attention.tile import attend_tile, blocks_of, finish_rows, scaled, start_rows
from llmk_triton.common import pdl

_TOGETHER = tl.constexpr(256)
"""Requests per iteration of the search."""


@triton.jit
def find_request(starts, num_requests, program):
    """The request of a program, given the cumulative numbers of programs of requests."""
    found = 0
    for first in range(0, num_requests, _TOGETHER):
        request = first + tl.arange(0, _TOGETHER)
        there = request < num_requests
        found += tl.sum((there & (tl.load(starts + request, there, other=0) <= program)).to(tl.int32))
    return found - 1


@triton.jit
def _merge(partial, stats, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The attention over all keys of a tile of queries, given the partial results of ``count`` programs, each over its
    own keys."""
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
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
    return acc, total


@triton.jit(do_not_specialize=["num_requests", "stride_table"])
def prefill_kernel(
    out, query, cache, sinks, query_start, seq_lens, block_table, starts, parts, places, arrived, partial, stats,
    num_requests, stride_query, stride_block, stride_kind, stride_head, stride_token, stride_table, k_scale, v_scale,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, HAS_SINKS: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr, SPLIT_ONLY: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The grid is ``[at least as many programs as are scheduled, kv_heads]``. The rows of a program are
    ``ROWS // GROUP`` queries of one request times the ``GROUP`` query heads that share a K/V head. Where a tile's keys
    are split, the last of its programs to finish merges the partial results. With ``SPLIT_ONLY``, programs have split
    keys only, and the grid is ``[most, kv_heads]``.

    ``query`` is ``[tokens, HEADS, SIZE]``, ``out`` ``[tokens, HEADS, VALUE]``, contiguous; ``starts``, ``parts``,
    ``places`` and ``arrived`` are a :class:`~llmk_triton.attention.prefill_schedule.PrefillSchedule`; ``partial``
    (float32 ``[most, kv_heads, ROWS, VALUE_BLOCK]``) and ``stats`` (``[most, kv_heads, ROWS, 2]``) hold partial
    results.
    """
    pdl.wait(PDL)
    pdl.release(PDL)
    queries: tl.constexpr = ROWS // GROUP
    kv_head, kv_heads = tl.program_id(1), tl.num_programs(1)
    if SPLIT_ONLY:
        program = tl.program_id(0)
        request = find_request(places, num_requests, program)
        item = program - tl.load(places + request)
        count = tl.load(parts + request)
        if (count == 1) | (item >= tl.load(starts + request + 1) - tl.load(starts + request)):
            return
    else:
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
    head = kv_head * GROUP + row % GROUP
    inside = (row < queries * GROUP) & (index < length)
    column = tl.arange(0, BLOCK)
    here = inside[:, None] & (column < SIZE)[None, :]
    token = (first_row + index).to(tl.int64)
    q = tl.load(query + (token * stride_query + head * SIZE)[:, None] + column[None, :], here, other=0.0)
    q = scaled(q, k_scale, cache)
    peak, total = start_rows(sinks, head, inside, part == 0, HAS_SINKS)
    acc = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)

    keys = cache + kv_head.to(tl.int64) * stride_head
    values = keys + stride_kind
    table = block_table + request.to(tl.int64) * stride_table
    position = context + index
    stop = tl.minimum(seq_len, context + first + queries)
    low = 0
    full = (context + first + 1) // TILE * TILE
    if CHUNKED:
        low = (context + first) // WINDOW * WINDOW
        # Where all queries are of one chunk, and it starts with a tile, they see every key up to the first of them.
        if ((stop - 1) // WINDOW * WINDOW > low) | (low % TILE > 0):
            full = low // TILE * TILE
    elif WINDOW > 0:
        low = tl.maximum(0, context + first - WINDOW + 1)
        full = low // TILE * TILE
    start = low // TILE * TILE
    each = tl.cdiv(tl.cdiv(stop - start, TILE), count) * TILE
    start += part * each
    stop = tl.minimum(stop, start + each)
    full = tl.maximum(start, tl.minimum(full, stop))
    block = blocks_of(table, start, low, seq_len, BLOCK_SIZE, TILE)
    border = blocks_of(table, full, low, seq_len, BLOCK_SIZE, TILE)
    for at in tl.range(start, full, TILE):
        following = blocks_of(table, at + TILE, low, seq_len, BLOCK_SIZE, TILE)
        acc, total, peak = attend_tile(
            acc, total, peak, q, keys, values, block, at, position, low, seq_len, stride_block, stride_token,
            SCALE, SOFTCAP, WINDOW, CHUNKED, SIZE, VALUE, BLOCK_SIZE, TILE, PRECISION, False, SCALED,
        )  # fmt: skip
        block = following
    block = border
    for at in tl.range(full, stop, TILE):
        following = blocks_of(table, at + TILE, low, seq_len, BLOCK_SIZE, TILE)
        acc, total, peak = attend_tile(
            acc, total, peak, q, keys, values, block, at, position, low, seq_len, stride_block, stride_token,
            SCALE, SOFTCAP, WINDOW, CHUNKED, SIZE, VALUE, BLOCK_SIZE, TILE, PRECISION, True, SCALED,
        )  # fmt: skip
        block = following
    acc = scaled(acc, v_scale, cache)
    column = tl.arange(0, VALUE_BLOCK)
    place, here = (token * HEADS + head)[:, None] * VALUE + column[None, :], inside[:, None] & (column < VALUE)[None, :]
    finished = count == 1
    if count > 1:
        # The partial results of one tile and K/V head are contiguous.
        first_part = (tl.load(places + request) + item - part) * kv_heads + kv_head * count
        mine = (first_part + part).to(tl.int64) * ROWS + row
        tl.store(partial + mine[:, None] * VALUE_BLOCK + column[None, :], acc)
        tl.store(stats + 2 * mine, peak)
        tl.store(stats + 2 * mine + 1, total)
        # All of the program's stores must be visible before its counter increments.
        tl.debug_barrier()
        tally = arrived + first_part
        finished = tl.atomic_add(tally, 1, sem="acq_rel") == count - 1
        if finished:
            tl.store(tally, 0)
            own = first_part.to(tl.int64) * ROWS
            acc, total = _merge(partial + own * VALUE_BLOCK, stats + 2 * own, count, ROWS, VALUE_BLOCK)
    tl.store(out + place, finish_rows(acc, total).to(out.dtype.element_ty), here & finished)

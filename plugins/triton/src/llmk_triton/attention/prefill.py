"""Attention of requests with any number of queries in a step: prefill, chunked prefill, and decode in mixed steps."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attention.tile import attend_tile, blocks_of, finish_rows, scaled, start_rows
from llmk_triton.common import pdl

_TOGETHER = tl.constexpr(256)
"""Requests per iteration of the search."""


@triton.jit
def _find_request(query_start, num_requests, program, QUERIES: tl.constexpr):
    """The request of a program, where each request has one program per ``QUERIES`` queries, plus one.

    Request ``i`` starts at program ``query_start[i] // QUERIES + i``, so the number of requests that start at or before
    the program gives its request, without another table.
    """
    found = 0
    for first in range(0, num_requests, _TOGETHER):
        request = first + tl.arange(0, _TOGETHER)
        there = request < num_requests
        first_program = tl.load(query_start + request, there, other=0) // QUERIES + request
        found += tl.sum((there & (first_program <= program)).to(tl.int32))
    return found - 1


@triton.jit(do_not_specialize=["num_requests", "stride_table"])
def prefill_kernel(
    out, query, cache, sinks, query_start, seq_lens, block_table, num_requests, stride_query, stride_block,
    stride_kind, stride_head, stride_token, stride_table, k_scale, v_scale,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, HEADS: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr, SKIP_DECODE: tl.constexpr,
):  # fmt: skip
    """The grid is ``[tokens // (ROWS // GROUP) + requests, kv_heads]``. The rows of a program are ``ROWS // GROUP``
    queries of one request times the ``GROUP`` query heads that share a K/V head.

    ``query`` and ``out`` are ``[tokens, HEADS, SIZE]``, ``out`` contiguous. With ``SKIP_DECODE``, requests with one
    query are left to the decode kernel.
    """
    pdl.wait(PDL)
    pdl.release(PDL)
    queries: tl.constexpr = ROWS // GROUP
    # Later queries of a request see more keys. They start first, so that no long program starts last.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    request = _find_request(query_start, num_requests, program, queries)
    first_row = tl.load(query_start + request)
    length = tl.load(query_start + request + 1) - first_row
    first = (program - (first_row // queries + request)) * queries
    skip = first >= length
    if SKIP_DECODE:
        skip = skip | (length == 1)
    if skip:
        return
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
    peak, total = start_rows(sinks, head, inside, True, HAS_SINKS)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)

    keys = cache + kv_head.to(tl.int64) * stride_head
    values = keys + stride_kind
    table = block_table + request.to(tl.int64) * stride_table
    position = context + index
    stop = tl.minimum(seq_len, context + first + queries)
    low = 0
    full = (context + first + 1) // TILE * TILE
    if WINDOW > 0:
        low = tl.maximum(0, context + first - WINDOW + 1)
        full = low // TILE * TILE
    start = low // TILE * TILE
    block = blocks_of(table, start, low, seq_len, BLOCK_SIZE, TILE)
    border = blocks_of(table, full, low, seq_len, BLOCK_SIZE, TILE)
    for at in tl.range(start, full, TILE):
        following = blocks_of(table, at + TILE, low, seq_len, BLOCK_SIZE, TILE)
        acc, total, peak = attend_tile(
            acc, total, peak, q, keys, values, block, at, position, low, seq_len, stride_block, stride_token,
            SCALE, SOFTCAP, WINDOW, SIZE, BLOCK_SIZE, TILE, PRECISION, False,
        )  # fmt: skip
        block = following
    block = border
    for at in tl.range(full, stop, TILE):
        following = blocks_of(table, at + TILE, low, seq_len, BLOCK_SIZE, TILE)
        acc, total, peak = attend_tile(
            acc, total, peak, q, keys, values, block, at, position, low, seq_len, stride_block, stride_token,
            SCALE, SOFTCAP, WINDOW, SIZE, BLOCK_SIZE, TILE, PRECISION, True,
        )  # fmt: skip
        block = following
    place = (token * HEADS + head)[:, None] * SIZE + column[None, :]
    tl.store(out + place, finish_rows(scaled(acc, v_scale, cache), total).to(out.dtype.element_ty), here)

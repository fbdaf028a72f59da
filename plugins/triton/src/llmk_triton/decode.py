"""Attention of requests with one query in a step. Their keys are split between programs (Flash-Decoding), of which the
last to finish merges what all of them found."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attend import attend_tile, finish_rows, start_rows


@triton.jit
def _merge(partial, stats, count, row, column, GROUP: tl.constexpr, SIZE: tl.constexpr):
    """The attention over all keys of what ``count`` programs have, each over its own: ``[rows, columns]``."""
    here = (row < GROUP)[:, None] & (column < SIZE)[None, :]
    acc = tl.zeros([row.shape[0], column.shape[0]], tl.float32)
    total = tl.zeros(row.shape, tl.float32)
    peak = tl.full(row.shape, float("-inf"), tl.float32)
    for split in range(count):
        at = split * GROUP + row
        # Other programs wrote these: they must not come from this processor's own cache.
        other_peak = tl.load(stats + 2 * at, row < GROUP, other=0.0, cache_modifier=".cg")
        other_total = tl.load(stats + 2 * at + 1, row < GROUP, other=1.0, cache_modifier=".cg")
        other = tl.load(partial + at[:, None] * SIZE + column[None, :], here, other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, other_peak)
        kept, added = tl.exp2(peak - new_peak), tl.exp2(other_peak - new_peak)
        acc = acc * kept[:, None] + other * added[:, None]
        total = total * kept + other_total * added
        peak = new_peak
    return finish_rows(acc, total)


@triton.jit(do_not_specialize=["num_rows", "stride_table", "parallel"])
def decode_kernel(
    out, query, cache, sinks, query_start, seq_lens, block_table, num_rows, partial, stats, arrived, stride_query,
    stride_block, stride_kind, stride_head, stride_token, stride_table, parallel,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, HEADS: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, MOST_TILES: tl.constexpr, SPLIT: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    """Programs are ``[kv_heads, splits, requests]``; a split takes a ``parallel``-th of a request's keys, but
    ``MOST_TILES`` tiles at most.

    With ``SPLIT``, ``partial`` (float32 ``[requests, kv_heads, splits, GROUP, SIZE]``) and ``stats`` (``[..., GROUP,
    2]``) hold what splits have found, ``arrived`` (int32 ``[requests * kv_heads]``) is zero before and after. Requests
    without a query are padding: with ``MIXED`` they are left alone, as are those with more than one; without, request
    ``i`` is row ``i``, if there is such a row, which becomes zeros.
    """
    kv_head, split, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    head = kv_head * GROUP + row
    here = (row < GROUP)[:, None] & (column < SIZE)[None, :]
    token = tl.load(query_start + request)
    length = tl.load(query_start + request + 1) - token
    if MIXED:
        if length != 1:
            return
    else:
        if request >= num_rows:
            return
        token = request
    seq_len = tl.where(length == 1, tl.load(seq_lens + request), 0)
    place = (token.to(tl.int64) * HEADS + head)[:, None] * SIZE + column[None, :]

    low = 0
    if WINDOW > 0:
        low = tl.maximum(0, seq_len - WINDOW)
    first = low // TILE * TILE
    tiles = tl.maximum(tl.cdiv(seq_len - first, TILE), 1)
    splits = 1
    if SPLIT:
        each = tl.minimum(tl.cdiv(tiles, parallel), MOST_TILES)
        splits = tl.cdiv(tiles, each)
        if split >= splits:
            return
        first += split * each * TILE
        tiles = tl.minimum(tiles - split * each, each)

    q_place = (token.to(tl.int64) * stride_query + head * SIZE)[:, None] + column[None, :]
    q = tl.load(query + q_place, here, other=0.0)
    peak, total = start_rows(sinks, head, row < GROUP, split == 0, HAS_SINKS)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    keys = cache + kv_head.to(tl.int64) * stride_head
    values = keys + stride_kind
    table = block_table + request.to(tl.int64) * stride_table
    position = tl.zeros([ROWS], tl.int32) + seq_len - 1
    for at in tl.range(first, first + tiles * TILE, TILE):
        acc, total, peak = attend_tile(
            acc, total, peak, q, keys, values, table, at, position, low, seq_len, stride_block, stride_token,
            SCALE, SOFTCAP, WINDOW, SIZE, BLOCK_SIZE, TILE, PRECISION, True,
        )  # fmt: skip
    if splits == 1:
        found = finish_rows(acc, total)
        tl.store(out + place, found.to(out.dtype.element_ty), here)
    if SPLIT:  # noqa: SIM102 (known when compiling, unlike the other)
        if splits > 1:
            owner = request.to(tl.int64) * tl.num_programs(0) + kv_head
            slots = owner * tl.num_programs(1) * GROUP
            mine = slots + split * GROUP + row
            tl.store(partial + mine[:, None] * SIZE + column[None, :], acc, here)
            tl.store(stats + 2 * mine, peak, row < GROUP)
            tl.store(stats + 2 * mine + 1, total, row < GROUP)
            # All of the program's stores come before the count that tells of them.
            tl.debug_barrier()
            before = tl.atomic_add(arrived + owner, 1, sem="acq_rel")
            if before == splits - 1:
                tl.store(arrived + owner, 0)
                found = _merge(partial + slots * SIZE, stats + 2 * slots, splits, row, column, GROUP, SIZE)
                tl.store(out + place, found.to(out.dtype.element_ty), here)

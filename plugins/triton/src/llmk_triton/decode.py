"""Attention of requests with one query in a step. Their keys are split between programs (Flash-Decoding), of which the
last to finish merges what all of them found."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attend import attend_tile, finish_rows, start_rows


@triton.jit
def _leave(
    acc, peak, total, partial, stats, arrived, split, splits, row, here, GROUP: tl.constexpr, SIZE: tl.constexpr
):
    """Leaves what a split has found where the last one finds it; returns whether this is the last, and then counts from
    zero again."""
    at = split * GROUP + row
    column = tl.arange(0, acc.shape[1])
    tl.store(partial + at[:, None] * SIZE + column[None, :], acc, here)
    tl.store(stats + 2 * at, peak, row < GROUP)
    tl.store(stats + 2 * at + 1, total, row < GROUP)
    # All of the program's stores come before the count that tells of them.
    tl.debug_barrier()
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == splits - 1
    tl.store(arrived, 0, last)
    return last


@triton.jit
def _merge(
    out, partial, stats, count, GROUP: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Makes the attention over all keys of what ``count`` programs have found, each over its own: ``[GROUP, SIZE]`` at
    ``out``, within a tile of ``[HEADS, BLOCK]``. ``AT_ONCE`` programs' results are read together: one after the other,
    each would wait for memory.
    """
    head = tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)
    acc = tl.zeros([HEADS, BLOCK], tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    for first in tl.range(0, count, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        there = (split < count)[:, None] & (head < GROUP)[None, :]
        at = split[:, None] * GROUP + head[None, :]
        # Other programs wrote these: they must not come from this processor's own cache.
        peaks = tl.load(stats + 2 * at, there, other=float("-inf"), cache_modifier=".cg")
        totals = tl.load(stats + 2 * at + 1, there, other=0.0, cache_modifier=".cg")
        whole = there[:, :, None] & (column < SIZE)[None, None, :]
        place = at[:, :, None] * SIZE + column[None, None, :]
        found = tl.load(partial + place, whole, other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, tl.max(peaks, axis=0))
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(peaks - anchor[None, :])
        kept = tl.exp2(peak - anchor)
        acc = acc * kept[:, None] + tl.sum(found * weights[:, :, None], axis=0)
        total = total * kept + tl.sum(totals * weights, axis=0)
        peak = new_peak
    here = (head < GROUP)[:, None] & (column < SIZE)[None, :]
    found = finish_rows(acc, total).to(out.dtype.element_ty)
    tl.store(out + head[:, None] * SIZE + column[None, :], found, here)


@triton.jit(do_not_specialize=["num_rows", "stride_table", "parallel"])
def decode_kernel(
    out, query, cache, sinks, query_start, seq_lens, block_table, num_rows, partial, stats, arrived, stride_query,
    stride_block, stride_kind, stride_head, stride_token, stride_table, parallel,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, HEADS: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, MOST_TILES: tl.constexpr, SPLIT: tl.constexpr,
    MERGED_HEADS: tl.constexpr, MERGED_AT_ONCE: tl.constexpr, MIXED: tl.constexpr,
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
            partial += owner * tl.num_programs(1) * GROUP * SIZE
            stats += owner * tl.num_programs(1) * GROUP * 2
            last = _leave(acc, peak, total, partial, stats, arrived + owner, split, splits, row, here, GROUP, SIZE)
            if last:
                first_head = out + (token.to(tl.int64) * HEADS + kv_head * GROUP) * SIZE
                _merge(first_head, partial, stats, splits, GROUP, SIZE, MERGED_HEADS, BLOCK, MERGED_AT_ONCE)

"""Attention of requests with one query in a step (Flash-Decoding). :mod:`llmk_triton.attention.decode_schedule` splits
their keys between programs; the last program of a request to finish merges the partial results."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attention.decode_schedule import FIELDS
from llmk_triton.attention.rotary import load_heads, rotated, store_new
from llmk_triton.attention.tile import attend_tile, blocks_of, finish_rows, scaled, start_rows
from llmk_triton.common.tuples import append, nothing


@triton.jit
def _merge(
    out, partial, stats, count, GROUP: tl.constexpr, VALUE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Merges the partial results of ``count`` programs, each over its own keys, to the attention over all keys:
    ``[GROUP, VALUE]`` at ``out``, within a tile of ``[HEADS, BLOCK]``. The results of ``AT_ONCE`` programs are loaded
    together, because waiting for one load after the other would be slow. A thread loads the same element of all of
    them, so no data moves between threads."""
    head = tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)
    here = (head < GROUP)[:, None] & (column < VALUE)[None, :]
    acc = tl.zeros([HEADS, BLOCK], tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    for first in tl.range(0, count, AT_ONCE):
        peaks, totals, found = nothing(), nothing(), nothing()
        for i in tl.static_range(AT_ONCE):
            at = (first + i) * GROUP + head
            there = (head < GROUP) & (first + i < count)
            whole = here & (first + i < count)
            # Other programs wrote these, so they must be loaded from L2, not from this multiprocessor's L1.
            peaks = append(peaks, tl.load(stats + 2 * at, there, other=float("-inf"), cache_modifier=".cg"))
            totals = append(totals, tl.load(stats + 2 * at + 1, there, other=0.0, cache_modifier=".cg"))
            place = partial + at[:, None] * VALUE + column[None, :]
            found = append(found, tl.load(place, whole, other=0.0, cache_modifier=".cg"))
        new_peak = peak
        for i in tl.static_range(AT_ONCE):
            new_peak = tl.maximum(new_peak, peaks[i])
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        kept = tl.exp2(peak - anchor)
        acc, total = acc * kept[:, None], total * kept
        for i in tl.static_range(AT_ONCE):
            weight = tl.exp2(peaks[i] - anchor)
            acc += found[i] * weight[:, None]
            total += totals[i] * weight
        peak = new_peak
    result = finish_rows(acc, total).to(out.dtype.element_ty)
    tl.store(out + head[:, None] * VALUE + column[None, :], result, here)


@triton.jit
def _leave(
    acc, peak, total, out, partial, stats, arrived, spans, request, members, part, row, here,
    GROUP: tl.constexpr, VALUE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Stores a program's partial result. If it is the last of a request, also merges all partial results into the
    request's row of ``out`` and resets the counter. The partial results of one request and K/V head are contiguous."""
    kv_head, kv_heads = tl.program_id(0), tl.num_programs(0)
    inside = row // GROUP < members
    spans += request
    before = tl.load(spans + row // GROUP, inside, other=0)
    parts = tl.load(spans + row // GROUP + 1, inside, other=0) - before
    at = ((before * kv_heads + kv_head * parts + part) * GROUP + row % GROUP).to(tl.int64)
    column = tl.arange(0, acc.shape[1])
    tl.store(partial + at[:, None] * VALUE + column[None, :], acc, here)
    tl.store(stats + 2 * at, peak, inside)
    tl.store(stats + 2 * at + 1, total, inside)
    # All of the program's stores must be visible before its counter increments.
    tl.debug_barrier()
    for member in tl.range(0, members):
        start = tl.load(spans + member)
        count = tl.load(spans + member + 1) - start
        tally = arrived + (request + member) * kv_heads + kv_head
        if tl.atomic_add(tally, 1, sem="acq_rel") == count - 1:
            tl.store(tally, 0)
            first = (start * kv_heads + kv_head * count).to(tl.int64) * GROUP
            to = out + (member * kv_heads + kv_head) * GROUP * VALUE
            _merge(to, partial + first * VALUE, stats + 2 * first, count, GROUP, VALUE, HEADS, BLOCK, AT_ONCE)


@triton.jit(do_not_specialize=["stride_table"])
def decode_kernel(
    out, query, cache, sinks, items, spans, arrived, partial, stats, block_table, stride_query, stride_block,
    stride_kind, stride_head, stride_token, stride_table,
    key, value, q_weight, k_weight, positions, cos_sin, slot_mapping, stride_key, stride_value, k_scale, v_scale,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr, SCALED: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, MERGED_HEADS: tl.constexpr, MERGED_AT_ONCE: tl.constexpr,
    FUSED: tl.constexpr, EPS: tl.constexpr, ROTARY: tl.constexpr, NEIGHBOURS: tl.constexpr, NORM_AFTER: tl.constexpr,
    Q_WEIGHT: tl.constexpr, K_WEIGHT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The grid is ``[kv_heads, any number]``; programs take the work items in turn. ``items``, ``spans`` and
    ``arrived`` are a :class:`~llmk_triton.attention.decode_schedule.Schedule`. The rows of a program are the ``GROUP``
    query heads that share a K/V head, for each request that shares the item.

    Keys have ``SIZE`` elements and values ``VALUE``, in tiles of ``BLOCK`` and ``VALUE_BLOCK`` columns. ``partial``
    (float32 ``[parts, HEADS, VALUE]``) and ``stats`` (``[parts, HEADS, 2]``) hold partial results. With
    ``FUSED``, ``query`` and ``key`` are the inputs of norm and RoPE, and the program with a request's last split first
    writes the newest key and value to the cache.

    It does not use programmatic dependent launch (:mod:`llmk_triton.common.pdl`): with GEMM programs waiting on the
    same multiprocessors, it was up to four times slower (H200).
    """
    kv_head = tl.program_id(0).to(tl.int64)
    keys = cache + kv_head * stride_head
    row = tl.arange(0, ROWS)
    column, own = tl.arange(0, BLOCK), tl.arange(0, VALUE_BLOCK)
    head = kv_head * GROUP + row % GROUP
    for index in tl.range(tl.program_id(1), tl.load(items), tl.num_programs(1)):
        item = items + (1 + index) * FIELDS
        first_token, request = tl.load(item), tl.load(item + 1)
        first, end, low = tl.load(item + 2), tl.load(item + 3), tl.load(item + 4)
        part, parts, members = tl.load(item + 5), tl.load(item + 6), tl.load(item + 7)
        table = block_table + request.to(tl.int64) * stride_table
        block = blocks_of(table, first, low, end, BLOCK_SIZE, TILE)
        inside = row // GROUP < members
        here, here_value = inside[:, None] & (column < SIZE)[None, :], inside[:, None] & (own < VALUE)[None, :]
        token = first_token.to(tl.int64) + row // GROUP
        place = query + token * stride_query + head * SIZE
        if FUSED:
            new = first_token.to(tl.int64) + tl.arange(0, 1)
            slot = tl.load(slot_mapping + new, (part == parts - 1) & (end > first), other=-1)
            new_angles = cos_sin + tl.load(positions + new) * ROTARY
            angles = cos_sin + tl.load(positions + token, inside, other=0) * ROTARY
            heads = load_heads(place, q_weight, angles, inside, SIZE, BLOCK, ROTARY, NEIGHBOURS, Q_WEIGHT)
            new_key, new_value = key + new * stride_key + kv_head * SIZE, value + new * stride_value + kv_head * VALUE
            k = load_heads(new_key, k_weight, new_angles, slot >= 0, SIZE, BLOCK, ROTARY, NEIGHBOURS, K_WEIGHT)
            v = tl.load(new_value[:, None] + own[None, :], (slot >= 0)[:, None] & (own < VALUE), other=0.0)
            k = rotated(k, EPS, SIZE, ROTARY, NEIGHBOURS, NORM_AFTER, K_WEIGHT, OFFSET)
            store_new(
                k, v, keys + new * 0, slot, stride_block, stride_kind, stride_token, k_scale, v_scale, SIZE, VALUE,
                BLOCK_SIZE,
            )  # fmt: skip
            q = rotated(heads, EPS, SIZE, ROTARY, NEIGHBOURS, NORM_AFTER, Q_WEIGHT, OFFSET)
            q = q.to(query.dtype.element_ty)
            # The newest key must be in the cache before any thread reads it from there.
            tl.debug_barrier()
        else:
            q = tl.load(place[:, None] + column[None, :], here, other=0.0)
        q = scaled(q, k_scale, cache)
        peak, total = start_rows(sinks, head, inside, part == 0, HAS_SINKS)
        acc = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
        totals = tl.where(tl.arange(0, TILE)[None, :] == 0, total[:, None], 0.0)
        position = tl.zeros([ROWS], tl.int32) + end
        for at in tl.range(first, end, TILE):
            following = blocks_of(table, at + TILE, low, end, BLOCK_SIZE, TILE)
            acc, totals, peak = attend_tile(
                acc, totals, peak, q, keys, keys + stride_kind, block, at, position, low, end, stride_block,
                stride_token, SCALE, SOFTCAP, 0, False, SIZE, VALUE, BLOCK_SIZE, TILE, PRECISION, True, SCALED,
            )  # fmt: skip
            block = following
        total = tl.sum(totals, axis=1)
        acc = scaled(acc, v_scale, cache)
        if parts == 1:
            found = finish_rows(acc, total).to(out.dtype.element_ty)
            tl.store(out + (token * HEADS + head)[:, None] * VALUE + own[None, :], found, here_value)
        else:
            _leave(
                acc, peak, total, out + first_token.to(tl.int64) * HEADS * VALUE, partial, stats, arrived, spans,
                request, members, part, row, here_value, GROUP, VALUE, MERGED_HEADS, VALUE_BLOCK, MERGED_AT_ONCE,
            )  # fmt: skip

"""Latent attention of requests with one query in a step (Flash-Decoding). :mod:`llmk_triton.attention.decode_schedule`
splits their keys between programs; a second kernel merges the partial results.

The merge is a launch of its own, unlike that of :mod:`llmk_triton.attention.decode`: results are as wide as the latent
vector for each head, so the last program of a request to finish would have megabytes to merge alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.attention.decode_schedule import FIELDS
from llmk_triton.attention.tile import blocks_of, finish_rows, scaled
from llmk_triton.common import pdl
from llmk_triton.latent.tile import attend_latents, load_queries


@triton.jit(do_not_specialize=["stride_table"])
def latent_decode_kernel(
    out, query, cache, items, spans, partial, stats, block_table, stride_query, stride_block, stride_token,
    stride_table, scale,
    SCALE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The grid is ``[groups of GROUP heads, any number]``; programs take the work items in turn. ``items`` and
    ``spans`` are a :class:`~llmk_triton.attention.decode_schedule.Schedule`. The rows of a program are the heads of its
    group, for each request that shares the item.

    ``query`` is ``[tokens, HEADS, LATENT + ROPE]``, ``out`` ``[tokens, HEADS, LATENT]``; ``scale`` is that of an fp8
    cache. Where a request's keys are split, ``partial`` (float32 ``[parts, HEADS, LATENT]``) and ``stats`` (``[parts,
    HEADS, 2]``, maximum and sum) get the results instead of ``out``.

    Like :func:`~llmk_triton.attention.decode.decode_kernel`, it does not use programmatic dependent launch.
    """
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    head = tl.program_id(0) * GROUP + row % GROUP
    for index in tl.range(tl.program_id(1), tl.load(items), tl.num_programs(1)):
        item = items + (1 + index) * FIELDS
        first_token, request = tl.load(item), tl.load(item + 1)
        first, end = tl.load(item + 2), tl.load(item + 3)
        part, parts, members = tl.load(item + 5), tl.load(item + 6), tl.load(item + 7)
        table = block_table + request.to(tl.int64) * stride_table
        block = blocks_of(table, first, 0, end, BLOCK_SIZE, TILE)
        inside = (row // GROUP < members) & (head < HEADS)
        here = inside[:, None] & (column < LATENT)[None, :]
        token = first_token.to(tl.int64) + row // GROUP
        q, q_rope = load_queries(
            query, cache, token, head, inside, stride_query, scale, LATENT, ROPE, BLOCK, ROPE_BLOCK
        )
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        totals = tl.zeros([ROWS, TILE], tl.float32)
        acc = tl.zeros([ROWS, BLOCK], tl.float32)
        position = tl.zeros([ROWS], tl.int32) + end
        for at in tl.range(first, end, TILE):
            following = blocks_of(table, at + TILE, 0, end, BLOCK_SIZE, TILE)
            acc, totals, peak = attend_latents(
                acc, totals, peak, q, q_rope, cache, block, at, position, end, stride_block, stride_token,
                SCALE, LATENT, ROPE, BLOCK_SIZE, TILE, PRECISION, True,
            )  # fmt: skip
            block = following
        total = tl.sum(totals, axis=1)
        acc = scaled(acc, scale, cache)
        if parts == 1:
            place = out + (token * HEADS + head)[:, None] * LATENT + column[None, :]
            tl.store(place, finish_rows(acc, total).to(out.dtype.element_ty), here)
        else:
            before = tl.load(spans + request + row // GROUP, inside, other=0)
            mine = (before + part).to(tl.int64) * HEADS + head
            tl.store(partial + mine[:, None] * LATENT + column[None, :], acc, here)
            tl.store(stats + 2 * mine, peak, inside)
            tl.store(stats + 2 * mine + 1, total, inside)


@triton.jit
def merged_parts(
    partial, stats, at, count, column, HEADS: tl.constexpr, LATENT: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Some columns of the attention of one head of a request over all keys, float32, from ``count`` partial results,
    each over its own keys, the first of which is row ``at``. ``AT_ONCE`` are loaded together, because waiting for one
    load after the other would be slow."""
    acc = tl.zeros(column.shape, tl.float32)
    total = 0.0
    peak = float("-inf")
    for first in tl.range(0, count, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        there = part < count
        row = at + part * HEADS
        peaks = tl.load(stats + 2 * row, there, other=float("-inf"))
        totals = tl.load(stats + 2 * row + 1, there, other=0.0)
        whole = there[:, None] & (column < LATENT)[None, :]
        found = tl.load(partial + row[:, None] * LATENT + column[None, :], whole, other=0.0)
        new_peak = tl.maximum(peak, tl.max(peaks, axis=0))
        anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        kept, weights = tl.exp2(peak - anchor), tl.exp2(peaks - anchor)
        acc = acc * kept + tl.sum(found * weights[:, None], axis=0)
        total = total * kept + tl.sum(totals * weights, axis=0)
        peak = new_peak
    return acc / tl.where(total == 0.0, 1.0, total)


@triton.jit
def latent_merge_kernel(
    out, partial, stats, spans, query_start,
    HEADS: tl.constexpr, LATENT: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merges what :func:`latent_decode_kernel` left of requests with split keys. The grid is ``[requests, HEADS]``."""
    pdl.release(PDL)
    pdl.wait(PDL)
    request, head = tl.program_id(0), tl.program_id(1)
    before = tl.load(spans + request)
    count = tl.load(spans + request + 1) - before
    if count > 1:
        token = tl.load(query_start + request).to(tl.int64)
        column = tl.arange(0, BLOCK)
        at = before.to(tl.int64) * HEADS + head
        found = merged_parts(partial, stats, at, count, column, HEADS, LATENT, AT_ONCE)
        place = out + (token * HEADS + head) * LATENT + column
        tl.store(place, found.to(out.dtype.element_ty), column < LATENT)


@triton.jit
def latent_value_kernel(
    out, attended, partial, stats, spans, v_up,
    HEADS: tl.constexpr, LATENT: tl.constexpr, VALUE: tl.constexpr, COLUMNS: tl.constexpr, FEATURES: tl.constexpr,
    AT_ONCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As :func:`latent_merge_kernel`, and multiplies by the value projection ``v_up`` (``[HEADS, LATENT, VALUE]``), for
    steps of few requests with one query each. The grid is ``[requests, HEADS, blocks of FEATURES]``; ``out`` is
    ``[requests, HEADS, VALUE]``, ``attended`` the output of the decode kernel."""
    pdl.release(PDL)
    pdl.wait(PDL)
    request, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    feature = tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    before = tl.load(spans + request)
    count = tl.load(spans + request + 1) - before
    at = before.to(tl.int64) * HEADS + head
    acc = tl.zeros([COLUMNS, FEATURES], tl.float32)
    for first in tl.static_range(0, LATENT, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        there = (column < LATENT)[:, None] & (feature < VALUE)[None, :]
        up = tl.load(v_up + (head * LATENT + column)[:, None] * VALUE + feature[None, :], there, other=0.0)
        if count > 1:
            x = merged_parts(partial, stats, at, count, column, HEADS, LATENT, AT_ONCE).to(out.dtype.element_ty)
        else:
            x = tl.load(attended + (request * HEADS + head) * LATENT + column, column < LATENT, other=0.0)
        acc += x.to(tl.float32)[:, None] * up.to(tl.float32)
    found = tl.sum(acc, axis=0).to(out.dtype.element_ty)
    tl.store(out + (request * HEADS + head) * VALUE + feature, found, feature < VALUE)

"""Attention of prompts over projected keys and values (:mod:`llmk_triton.latent.expand`)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk_triton.attention.prefill import find_request
from llmk_triton.attention.prefill_schedule import PrefillSchedule
from llmk_triton.attention.tile import finish_rows, soften
from llmk_triton.common import pdl
from llmk_triton.common.targets import Tile, current_target, dot_precision
from llmk_triton.latent.expand import Expanded, Expansion


@triton.jit
def _attend(
    acc, total, peak, q, q_rope, keys, shared, values, start, position, limit, SCALE: tl.constexpr, KEY: tl.constexpr,
    ROPE: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Adds keys ``start`` to ``start + TILE - 1`` of a request to the rows' online softmax; ``keys``, ``shared`` and
    ``values`` point to its first row. Rows beyond ``limit`` exist."""
    token = start + tl.arange(0, TILE)
    column = tl.arange(0, q.shape[1])
    k = tl.load(keys + token[:, None] * KEY + column[None, :], (column < KEY)[None, :], other=0.0)
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if ROPE > 0:
        turned = tl.arange(0, q_rope.shape[1])
        k_rope = tl.load(shared + token[:, None] * ROPE + turned[None, :], (turned < ROPE)[None, :], other=0.0)
        logits = tl.dot(q_rope, tl.trans(k_rope), logits, input_precision=PRECISION)
    weights, shrink, total, peak = soften(
        logits, total, peak, token, position, token < limit, SCALE, 0.0, 0, False, MASKED
    )
    of_value = tl.arange(0, VALUE_BLOCK)
    v = tl.load(values + token[:, None] * VALUE + of_value[None, :], (of_value < VALUE)[None, :], other=0.0)
    acc = tl.dot(weights.to(q.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, total, peak


@triton.jit(do_not_specialize=["num_requests", "num_rows"])
def expanded_prefill_kernel(
    out, q, q_rope, keys, shared, values, query_start, seq_lens, starts, first_tiles, num_requests, num_rows, stride_q,
    stride_rope, stride_rope_head,
    SCALE: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PLACED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The grid is ``[at least as many programs as are scheduled, HEADS]``; a program computes ``ROWS`` queries of one
    request and head. ``first_tiles`` are the ``starts`` of an :class:`~llmk_triton.latent.expand.Expansion` in tiles of
    ``PLACED`` rows, of which there are ``num_rows``.

    ``q`` is ``[tokens, HEADS, KEY + ROPE]``, of which the first part is used; ``q_rope`` points to the rotated second
    parts. ``out`` is ``[tokens, HEADS, VALUE]``.
    """
    pdl.wait(PDL)
    pdl.release(PDL)
    head = tl.program_id(1)
    # Later queries of a request see more keys. They start first, so that no long program starts last.
    program = tl.load(starts + num_requests) - 1 - tl.program_id(0)
    if program < 0:
        return
    request = find_request(starts, num_requests, program)
    first_row = tl.load(query_start + request)
    length = tl.load(query_start + request + 1) - first_row
    first = (program - tl.load(starts + request)) * ROWS
    seq_len = tl.load(seq_lens + request)
    context = seq_len - length
    index = first + tl.arange(0, ROWS)
    inside = index < length
    token = (first_row + index).to(tl.int64)
    column, turned = tl.arange(0, KEY_BLOCK), tl.arange(0, ROPE_BLOCK)
    source = q + token * stride_q + head * (KEY + ROPE)
    plain = tl.load(source[:, None] + column[None, :], inside[:, None] & (column < KEY)[None, :], other=0.0)
    rotated = plain
    if ROPE > 0:
        source = q_rope + token * stride_rope + head * stride_rope_head
        rotated = tl.load(source[:, None] + turned[None, :], inside[:, None] & (turned < ROPE)[None, :], other=0.0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    place = tl.load(first_tiles + request).to(tl.int64) * PLACED
    shared += place * ROPE
    place += head.to(tl.int64) * num_rows
    keys += place * KEY
    values += place * VALUE
    position = context + index
    stop = tl.minimum(seq_len, context + first + ROWS)
    full = (context + first + 1) // TILE * TILE
    for at in tl.range(0, full, TILE):
        acc, total, peak = _attend(
            acc, total, peak, plain, rotated, keys, shared, values, at, position, seq_len, SCALE, KEY, ROPE, VALUE,
            VALUE_BLOCK, TILE, PRECISION, False,
        )  # fmt: skip
    for at in tl.range(full, stop, TILE):
        acc, total, peak = _attend(
            acc, total, peak, plain, rotated, keys, shared, values, at, position, seq_len, SCALE, KEY, ROPE, VALUE,
            VALUE_BLOCK, TILE, PRECISION, True,
        )  # fmt: skip
    of_value = tl.arange(0, VALUE_BLOCK)
    to = out + (token * HEADS + head)[:, None] * VALUE + of_value[None, :]
    here = inside[:, None] & (of_value < VALUE)[None, :]
    tl.store(to, finish_rows(acc, total).to(out.dtype.element_ty), here)


def attend_expanded(
    out: Tensor,
    q: Tensor,
    q_rope: Tensor,
    rows: Expanded,
    step: CacheStep,
    schedule: PrefillSchedule,
    expansion: Expansion,
    tile: Tile,
    scale: float,
) -> None:
    """Attention of requests with several queries, into their rows of ``out`` (``[tokens, heads, value_dim]``).

    ``q`` is ``[tokens, heads, key_dim + rotary_dim]``, contiguous except along tokens, ``q_rope`` the rotated
    ``[tokens, heads, rotary_dim]``; ``schedule`` is of tiles of ``tile.rows`` queries.
    """
    heads, count, key = rows.keys.shape
    rope, value, requests = rows.shared.shape[1], rows.values.shape[2], step.seq_lens.shape[0]
    expanded_prefill_kernel[(triton.cdiv(q.shape[0], tile.rows) + requests, heads)](
        out,
        q,
        q_rope,
        rows.keys,
        rows.shared,
        rows.values,
        step.query_start,
        step.seq_lens,
        schedule.starts,
        expansion.starts,
        requests,
        count,
        q.stride(0),
        *q_rope.stride()[:2],
        SCALE=scale,
        HEADS=heads,
        KEY=key,
        ROPE=rope,
        VALUE=value,
        KEY_BLOCK=max(16, triton.next_power_of_2(key)),
        ROPE_BLOCK=max(16, triton.next_power_of_2(rope)) if rope else 16,
        VALUE_BLOCK=max(16, triton.next_power_of_2(value)),
        ROWS=tile.rows,
        TILE=tile.keys,
        PLACED=expansion.tile.rows,
        PRECISION=dot_precision(current_target()),
        **pdl.options(),
        **tile.options(),
    )

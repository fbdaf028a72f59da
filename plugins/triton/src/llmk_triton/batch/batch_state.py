"""Ops on the persistent batch state, one launch each: build a step's input tensors, apply updates, append tokens.

Index tensors may be slices of a larger tensor with any alignment; kernels are not specialized (compiled again) for it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.reference.batch import StepTensors
from llmk_triton.common import pdl

_BLOCK = 512
"""Elements per iteration of a program."""


@triton.jit
def _sum_before(lengths, index, BLOCK: tl.constexpr):
    """Sum of the first ``index`` of ``lengths`` (int64)."""
    total = tl.full([], 0, tl.int64)
    for first in tl.range(0, index, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(lengths + at, at < index, other=0))
    return total


@triton.jit(do_not_specialize=["slots", "counts", "num_tokens", "stride"])
def build_step_kernel(
    tokens, computed, slots, counts, token_ids, positions, query_start, seq_lens, rows, num_tokens, stride,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per request, which is the only one to read and update its slot's ``computed``; the last one also
    fills the padding tokens."""
    request, requests = tl.program_id(0), tl.num_programs(0)
    pdl.release(PDL)
    pdl.wait(PDL)
    slot, count = tl.load(slots + request), tl.load(counts + request)
    start = _sum_before(counts, request, BLOCK)
    before = tl.load(computed + slot, slot >= 0, other=0)
    tl.store(computed + slot, before + count, slot >= 0)
    tl.store(seq_lens + request, (before + count).to(tl.int32))
    tl.store(query_start + request, start.to(tl.int32))
    for first in tl.range(0, count, BLOCK):
        place = first + tl.arange(0, BLOCK)
        there, at, position = place < count, start + place, before + place
        token = tl.load(tokens + slot * stride + position, there, other=0)
        tl.store(token_ids + at, token.to(tl.int64), there)
        tl.store(positions + at, position, there)
        tl.store(rows + at, position * 0 + request, there)
    if request == requests - 1:
        tl.store(query_start + requests, (start + count).to(tl.int32))
        for first in tl.range(start + count, num_tokens, BLOCK):
            at = first + tl.arange(0, BLOCK)
            nothing = at * 0
            tl.store(token_ids + at, nothing, at < num_tokens)
            tl.store(positions + at, nothing, at < num_tokens)
            tl.store(rows + at, nothing - 1, at < num_tokens)


@triton.jit(do_not_specialize=["slots", "num_tokens", "requests", "max_blocks", "stride"])
def compute_slot_mapping_kernel(
    table, slots, rows, positions, block_table, slot_mapping, num_tokens, requests, max_blocks, stride,
    BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The grid is ``[blocks of block table columns or of tokens, requests + 1]``: the last row of programs computes the
    slot mapping, each other row copies a request's row of the block table."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    request = tl.program_id(1)
    pdl.release(PDL)
    pdl.wait(PDL)
    if request < requests:
        source = table + tl.maximum(tl.load(slots + request), 0) * stride
        blocks = tl.load(source + column, column < max_blocks)
        tl.store(block_table + request.to(tl.int64) * max_blocks + column, blocks, column < max_blocks)
    else:
        there = column < num_tokens
        row = tl.load(rows + column, there, other=-1)
        position = tl.load(positions + column, there, other=0)
        slot = tl.load(slots + row, row >= 0, other=0)
        block = tl.load(table + slot * stride + position // BLOCK_SIZE, row >= 0, other=0)
        place = tl.where(row < 0, -1, block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE)
        tl.store(slot_mapping + column, place, there)


@triton.jit(do_not_specialize=["slots", "sampled", "requests", "stride"])
def append_tokens_kernel(
    tokens, computed, slots, sampled, requests, stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One program per ``BLOCK`` requests."""
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pdl.release(PDL)
    pdl.wait(PDL)
    slot = tl.load(slots + request, request < requests, other=-1)
    position = tl.load(computed + slot, slot >= 0, other=0)
    token = tl.load(sampled + request, slot >= 0, other=0)
    tl.store(tokens + slot * stride + position, token.to(tl.int32), slot >= 0)


@triton.jit(do_not_specialize=["slots", "starts", "counts", "sampled", "stride"])
def accept_drafts_kernel(
    tokens, computed, slots, starts, counts, sampled, gained, stride, WIDTH: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One program per request; ``WIDTH`` is at least the greatest of ``counts``."""
    request = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    pdl.release(PDL)
    pdl.wait(PDL)
    slot, count = tl.load(slots + request), tl.load(counts + request)
    there = slot >= 0
    row = sampled + tl.load(starts + request)
    end = tl.load(computed + slot, there, other=0)
    drafted = there & (column < count - 1)
    target = tokens + slot * stride + end - count + 1
    found = tl.load(row + column, drafted, other=0)
    equal = drafted & (found == tl.load(target + column, drafted, other=-1).to(tl.int64))
    accepted = tl.min(tl.where(equal, WIDTH, column), axis=0)
    tl.store(computed + slot, end - count + 1 + accepted, there)
    tl.store(target + accepted, tl.load(row + accepted, there, other=0).to(tl.int32), there)
    tl.store(gained + request, tl.where(there, accepted + 1, 0).to(tl.int64))


@triton.jit(do_not_specialize=["rows", "starts", "lengths", "values", "stride"])
def update_rows_kernel(
    table, rows, starts, lengths, values, stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One program per run."""
    run = tl.program_id(0)
    pdl.release(PDL)
    pdl.wait(PDL)
    values += _sum_before(lengths, run, BLOCK)
    out = table + tl.load(rows + run) * stride + tl.load(starts + run)
    length = tl.load(lengths + run)
    for first in tl.range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(values + at, at < length).to(table.dtype.element_ty), at < length)


def build_step(tokens: Tensor, computed: Tensor, slots: Tensor, counts: Tensor, num_tokens: int) -> StepTensors:
    """As :func:`llmk.reference.batch.build_step`."""
    requests, device = slots.shape[0], tokens.device
    step = StepTensors(
        token_ids=torch.empty(num_tokens, dtype=torch.int64, device=device),
        positions=torch.empty(num_tokens, dtype=torch.int64, device=device),
        query_start=torch.empty(requests + 1, dtype=torch.int32, device=device),
        seq_lens=torch.empty(requests, dtype=torch.int32, device=device),
        rows=torch.empty(num_tokens, dtype=torch.int64, device=device),
    )
    build_step_kernel[(requests,)](tokens, computed, slots, counts, *step, num_tokens, tokens.stride(0), **_options())
    return step


def compute_slot_mapping(
    table: Tensor, slots: Tensor, rows: Tensor, positions: Tensor, block_size: int, max_blocks: int
) -> tuple[Tensor, Tensor]:
    """As :func:`llmk.reference.batch.compute_slot_mapping`."""
    requests, num_tokens = slots.shape[0], rows.shape[0]
    block_table = torch.empty(requests, max_blocks, dtype=torch.int32, device=table.device)
    slot_mapping = torch.empty(num_tokens, dtype=torch.int64, device=table.device)
    grid = (triton.cdiv(max(max_blocks, num_tokens), _BLOCK), requests + 1)
    compute_slot_mapping_kernel[grid](
        table, slots, rows, positions, block_table, slot_mapping, num_tokens, requests, max_blocks, table.stride(0),
        block_size, **_options(),
    )  # fmt: skip
    return block_table, slot_mapping


def append_tokens(tokens: Tensor, computed: Tensor, slots: Tensor, sampled: Tensor) -> None:
    """As :func:`llmk.reference.batch.append_tokens`."""
    requests = slots.shape[0]
    append_tokens_kernel[(triton.cdiv(requests, _BLOCK),)](
        tokens, computed, slots, sampled, requests, tokens.stride(0), **_options()
    )


def accept_drafts(
    tokens: Tensor, computed: Tensor, slots: Tensor, starts: Tensor, counts: Tensor, sampled: Tensor, most: int
) -> Tensor:
    """As :func:`llmk.reference.batch.accept_drafts`."""
    gained = torch.empty_like(slots)
    accept_drafts_kernel[(slots.shape[0],)](
        tokens, computed, slots, starts, counts, sampled, gained, tokens.stride(0),
        WIDTH=triton.next_power_of_2(most), num_warps=1, **pdl.options(),
    )  # fmt: skip
    return gained


def update_rows(table: Tensor, rows: Tensor, starts: Tensor, lengths: Tensor, values: Tensor) -> None:
    """As :func:`llmk.reference.batch.update_rows`."""
    if rows.shape[0]:
        update_rows_kernel[(rows.shape[0],)](table, rows, starts, lengths, values, table.stride(0), **_options())


def _options() -> dict[str, Any]:
    return {"BLOCK": _BLOCK, "num_warps": 4, **pdl.options()}

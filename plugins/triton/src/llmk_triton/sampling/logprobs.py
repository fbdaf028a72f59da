"""Log-probabilities of the sampled tokens, their ranks, and the most likely tokens, from one read of the logits: each
part of a row stores its sum and its most likely tokens, which one program per row merges."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.common import pdl
from llmk_triton.sampling.vocabulary import (
    key_logit,
    key_token,
    load_part,
    num_parts,
    order_keys,
    part_options,
    rows_of,
)

_NO_KEY = tl.constexpr(-(1 << 63))


@triton.jit(do_not_specialize=["token_ids", "num_top"])
def part_kernel(
    logits, token_ids, peaks, sums, higher, keys, stride, vocab, num_top,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The grid is ``[parts, rows]``. ``peaks`` and ``sums`` (float32 ``[rows, parts]``) are each part's greatest logit
    and its sum of ``exp(logit - peak)``, ``higher`` (int32 ``[rows, parts]``) the number of its logits above the
    sampled token's, ``keys`` (int64 ``[rows, parts, num_top]``) its most likely tokens in order.
    """
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    pdl.release(PDL)
    pdl.wait(PDL)
    x, token = load_part(logits, row, part, stride, vocab, DEPTH, WIDTH)
    chosen = tl.load(logits + row * stride + tl.load(token_ids + row)).to(tl.float32)
    at = row * tl.num_programs(0) + part
    peak = tl.max(tl.max(x, axis=0))
    anchor = tl.where(peak == float("-inf"), 0.0, peak)
    tl.store(peaks + at, peak)
    tl.store(sums + at, tl.sum(tl.sum(tl.exp(x - anchor), axis=0)))
    tl.store(higher + at, tl.sum(tl.sum((x > chosen).to(tl.int32), axis=0)))
    left = tl.where(token < vocab, order_keys(x, token), _NO_KEY)
    for i in tl.range(0, num_top):
        greatest = tl.max(tl.max(left, axis=0))
        tl.store(keys + at * num_top + i, greatest)
        left = tl.where(left == greatest, _NO_KEY, left)


@triton.jit(do_not_specialize=["token_ids", "num_top", "parts"])
def merge_kernel(
    logits, token_ids, peaks, sums, higher, keys, logprob, rank, top_ids, top_logprobs, stride, parts, num_top,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per row. ``logprob`` (float32) and ``rank`` (int64) are ``[rows]``, ``top_ids`` (int64) and
    ``top_logprobs`` (float32) ``[rows, num_top]``."""
    row = tl.program_id(0).to(tl.int64)
    pdl.release(PDL)
    pdl.wait(PDL)
    part = tl.arange(0, PARTS)
    at, there = row * parts + part, part < parts
    chosen = tl.load(logits + row * stride + tl.load(token_ids + row)).to(tl.float32)
    found = tl.load(peaks + at, there, other=float("-inf"))
    peak = tl.max(found)
    log_sum = tl.log(tl.sum(tl.load(sums + at, there, other=0.0) * tl.exp(found - peak)))
    tl.store(logprob + row, chosen - peak - log_sum)
    tl.store(rank + row, tl.sum(tl.load(higher + at, there, other=0)).to(tl.int64) + 1)
    # Every part's keys are in descending order: this merges the sorted lists.
    taken = tl.zeros([PARTS], tl.int32)
    for i in tl.range(0, num_top):
        following = tl.load(keys + at * num_top + taken, there & (taken < num_top), other=_NO_KEY)
        greatest = tl.max(following)
        tl.store(top_ids + row * num_top + i, key_token(greatest).to(tl.int64))
        tl.store(top_logprobs + row * num_top + i, key_logit(greatest) - peak - log_sum)
        taken += (following == greatest).to(tl.int32)


def logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`llmk.reference.sampling.sample.logprobs`, of logits in any floating dtype."""
    logits = rows_of(logits)
    (rows, vocab), parts, device = logits.shape, num_parts(logits), logits.device
    num_top = min(num_top, vocab)
    logprob, rank = torch.empty(rows, device=device), torch.empty(rows, dtype=torch.int64, device=device)
    top_ids = torch.empty(rows, num_top, dtype=torch.int64, device=device)
    top_logprobs = torch.empty(rows, num_top, device=device)
    if not rows:
        return logprob, rank, top_ids, top_logprobs
    peaks, sums = torch.empty(rows, parts, device=device), torch.empty(rows, parts, device=device)
    higher = torch.empty(rows, parts, dtype=torch.int32, device=device)
    keys = torch.empty(rows, parts, num_top, dtype=torch.int64, device=device)
    found = (logits, token_ids.contiguous(), peaks, sums, higher, keys)
    part_kernel[(parts, rows)](*found, logits.stride(0), vocab, num_top, **part_options())
    merge_kernel[(rows,)](
        *found, logprob, rank, top_ids, top_logprobs, logits.stride(0), parts, num_top,
        PARTS=triton.next_power_of_2(parts), num_warps=1, **pdl.options(),
    )  # fmt: skip
    return logprob, rank, top_ids, top_logprobs

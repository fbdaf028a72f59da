"""Repetition, presence and frequency penalties. Only the logits of tokens that occur are read and written: tokens are
counted first, then the first program that finds a token takes its count and applies the penalties."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.common import pdl

_BLOCK = 1024
"""Token positions of a request per program."""

_PLAIN = (
    *("slots", "rows", "prompt_lengths", "known", "presence", "frequency", "repetition"),
    *("stride_prompt", "stride_known", "stride_presence", "stride_frequency", "stride_repetition"),
)
"""Arguments that Triton must not specialize: they may be columns of tables, with any alignment."""

_IN_PROMPT = tl.constexpr(1 << 30)


@triton.jit
def _load_places(tokens, slots, known, vocab, stride_tokens, stride_known, BLOCK: tl.constexpr):
    """A block of a request's positions, the mask of those that have a token, and their tokens."""
    request = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < tl.load(known + request * stride_known)
    row = tl.load(slots + request).to(tl.int64)
    token = tl.load(tokens + row * stride_tokens + place, there, other=0)
    return place, there & (token < vocab), token


@triton.jit(do_not_specialize=_PLAIN)
def count_kernel(
    counts, tokens, slots, prompt_lengths, known, vocab, stride_tokens, stride_prompt, stride_known,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Counts how often each token occurs in the output, in ``counts`` (int32 ``[requests, vocab]``, initially zero),
    and marks tokens of the prompt. The grid is ``[blocks of positions, requests]``."""
    pdl.release(PDL)
    pdl.wait(PDL)
    place, there, token = _load_places(tokens, slots, known, vocab, stride_tokens, stride_known, BLOCK)
    request = tl.program_id(1)
    in_prompt = place < tl.load(prompt_lengths + request * stride_prompt)
    at = counts + request.to(tl.int64) * vocab + token
    tl.atomic_or(at, in_prompt.to(tl.int32) * _IN_PROMPT, there & in_prompt, sem="relaxed")
    tl.atomic_add(at, (place >= 0).to(tl.int32), there & ~in_prompt, sem="relaxed")


@triton.jit(do_not_specialize=_PLAIN)
def penalize_kernel(
    logits, rows, counts, tokens, slots, known, presence, frequency, repetition, vocab, stride, stride_tokens,
    stride_known, stride_presence, stride_frequency, stride_repetition, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Applies the penalties to the logits of the counted tokens. The grid is ``[blocks of positions, requests]``."""
    pdl.release(PDL)
    pdl.wait(PDL)
    _, there, token = _load_places(tokens, slots, known, vocab, stride_tokens, stride_known, BLOCK)
    request = tl.program_id(1)
    # Atomic AND with zero instead of an atomic exchange, which not every backend has.
    found = tl.atomic_and(counts + request.to(tl.int64) * vocab + token, token * 0, there, sem="relaxed")
    mine = there & (found != 0)
    count = (found & (_IN_PROMPT - 1)).to(tl.float32)
    factor = tl.load(repetition + request * stride_repetition)
    at = logits + tl.load(rows + request).to(tl.int64) * stride + token
    x = tl.load(at, mine, other=0.0).to(tl.float32)
    x = tl.where(x > 0, x / factor, x * factor)
    x -= tl.load(frequency + request * stride_frequency) * count
    x -= tl.load(presence + request * stride_presence) * (count > 0).to(tl.float32)
    tl.store(at, x.to(logits.dtype.element_ty), mine)


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    tokens: Tensor,
    slots: Tensor,
    prompt_lengths: Tensor,
    known: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> Tensor:
    """As :func:`llmk.reference.sampling.sample.apply_penalties`, of logits in any floating dtype."""
    requests, vocab, longest = rows.shape[0], logits.shape[1], tokens.shape[1]
    grid = (triton.cdiv(longest, _BLOCK), requests)
    if not (requests and longest):
        return logits
    counts = torch.zeros(requests, vocab, dtype=torch.int32, device=logits.device)
    options = {"BLOCK": _BLOCK, **pdl.options()}
    count_kernel[grid](
        counts, tokens, slots, prompt_lengths, known, vocab, tokens.stride(0), prompt_lengths.stride(0),
        known.stride(0), **options,
    )  # fmt: skip
    penalize_kernel[grid](
        logits, rows, counts, tokens, slots, known, presence, frequency, repetition, vocab, logits.stride(0),
        tokens.stride(0), known.stride(0), presence.stride(0), frequency.stride(0), repetition.stride(0), **options,
    )  # fmt: skip
    return logits

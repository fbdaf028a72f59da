"""Ops that sample. Their work depends on values: tested on corner cases, measured on what steps are full of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk.reference.op_examples import Draw, Facts, OpExamples

_FACTS: tuple[Facts, ...] = ({"vocab_size": 1000},)
_VOCABULARIES: tuple[Facts, ...] = (*_FACTS, {"vocab_size": 4097}, {"vocab_size": 64}, {"vocab_size": 31})
_TOP = 20
"""Log-probabilities per token in what is measured."""


def _logits(draw: Draw, facts: Facts, rows: int) -> Tensor:
    """float32 ``[rows, vocab]``, as far apart as a model's."""
    return draw.reals(rows, facts["vocab_size"]).mul_(3.0)


def _masked(logits: Tensor) -> Tensor:
    """Some tokens are ruled out, as grammars do; in the second row, all but one."""
    logits[::3, 5::7] = float("-inf")
    logits[1:2, :9] = logits[1:2, 10:] = float("-inf")
    return logits


def _penalties(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    prompts = draw.whole(1, 20, rows)
    known = prompts + draw.whole(0, 20, rows)
    given = draw.reals(rows), draw.reals(rows), 1 + 0.5 * torch.rand(rows, generator=draw.random)
    tokens = draw.whole(0, 30, rows + 2, 64).to(torch.int32)
    tokens[:, 2::9] = facts["vocab_size"]  # embeddings in place of tokens
    chosen, slots = draw.order(2 * rows)[:rows], draw.order(rows + 2)[:rows]
    return _masked(_logits(draw, facts, 2 * rows)), chosen, tokens, slots, prompts, known, *given


def _bias(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """One place comes twice."""
    at, ids = draw.whole(0, rows, 3 * rows), draw.whole(0, facts["vocab_size"], 3 * rows)
    at[-1], ids[-1] = at[0], ids[0]
    return _logits(draw, facts, rows), at, ids, draw.reals(3 * rows)


def _suffixes(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Sequences that are there, that start too early, and that are not there."""
    tokens, slots = draw.whole(0, 5, rows + 2, 40).to(torch.int32), draw.order(rows + 2)[:rows]
    ends, lengths = draw.whole(6, 41, rows), draw.whole(1, 5, rows)
    place = ends[:, None] - torch.arange(4, 0, -1)
    suffixes = tokens[slots[:, None], place].to(torch.int64)
    suffixes[torch.arange(4).expand(rows, 4) < 4 - lengths[:, None]] = -1
    suffixes[1::3, -1] += 1
    starts = torch.where(torch.arange(rows) % 3 == 2, ends - lengths + 1, ends - lengths)
    return tokens, slots, starts, ends, suffixes


def _allowed(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    among = draw.order(2 * rows)[:rows]
    ids = draw.whole(0, facts["vocab_size"], 7 * rows)
    return _logits(draw, facts, 2 * rows), among, among.repeat(7), ids


def _packed(draw: Draw, facts: Facts, rows: int) -> Tensor:
    """Masks of all shares of allowed tokens: some rows allow all, some one alone, of the last word."""
    words = -(-facts["vocab_size"] // 32)
    bits = draw.whole(-(2**31), 2**31, rows, words) & draw.whole(-(2**31), 2**31, rows, words)
    bits[::3], bits[1::3] = -1, 0
    bits[1::3, -1] = 1
    return bits.to(torch.int32)


def _masks(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return _logits(draw, facts, 2 * rows), draw.order(2 * rows)[:rows], _packed(draw, facts, rows)


def _truncation(draw: Draw, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    top_k = torch.tensor([0, 1, 50, 600, 9999])[draw.whole(0, 5, rows)]
    top_p = torch.tensor([1.0, 0.5, 0.9, 0.9999, 1e-6, 1e-9])[draw.whole(0, 6, rows)]  # 1 - 1e-9 is 1
    return top_k, top_p, torch.tensor([0.0, 0.2, 0.001])[draw.whole(0, 3, rows)]


def _mask(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return _masked(_logits(draw, facts, rows)), *_truncation(draw, rows)


def _sample(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """In the engine's dtype, some rows greedy."""
    temperature = torch.tensor([1.0, 0.7, 0.0, 2.0])[draw.whole(0, 4, rows)]
    chosen = draw.whole(-(2**62), 2**62, rows), draw.whole(0, 5000, rows)
    return _masked(_logits(draw, facts, rows)).to(draw.dtype), temperature, *_truncation(draw, rows), *chosen


def _logprobs(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    """Rounded, so that some are equal."""
    logits = _masked((_logits(draw, facts, rows) * 4).round().div(4)).to(draw.dtype)
    return logits, draw.whole(0, facts["vocab_size"], rows), 5


def _arange(draw: Draw, count: int) -> Tensor:
    return torch.arange(count, device=draw.random.device)


def history(draw: Draw, facts: Facts, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens that stand in slots, the slots, and how many each has."""
    tokens, slots = draw.whole(0, facts["vocab_size"], rows, 1024).to(torch.int32), _arange(draw, rows)
    return tokens, slots, torch.full_like(slots, 1000)


def _measured_penalties(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    tokens, slots, known = history(draw, facts, rows)
    third = torch.full((rows,), 0.3, device=slots.device)
    return _logits(draw, facts, rows), slots, tokens, slots, known // 2, known, third, third, 1 + third


def _places(draw: Draw, facts: Facts, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return _logits(draw, facts, rows), _arange(draw, rows), draw.whole(0, facts["vocab_size"], rows)


def _measured_bias(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return *_places(draw, facts, rows), draw.reals(rows)


def _measured_suffixes(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    tokens, slots, known = history(draw, facts, rows)
    return tokens, slots, torch.zeros_like(known), known, tokens[:, 998:1000].long()


def _measured_allowed(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    logits, at, ids = _places(draw, facts, rows)
    return logits, at, at, ids


def _measured_masks(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return _logits(draw, facts, rows), _arange(draw, rows), _packed(draw, facts, rows)


def _greedy(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    return _logits(draw, facts, rows), *(None,) * 6


def _measured_logprobs(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    logits, _, ids = _places(draw, facts, rows)
    return logits, ids, min(_TOP, facts["vocab_size"])


_CONTROLS = ("logits", "temperature", "top_k", "top_p", "min_p", "seeds", "positions")

APPLY_PENALTIES = OpExamples(_FACTS, _penalties, benchmark=_measured_penalties)
APPLY_BIAS = OpExamples(_FACTS, _bias, benchmark=_measured_bias)
MATCH_SUFFIXES = OpExamples(_FACTS, _suffixes, benchmark=_measured_suffixes)
ALLOW_TOKENS = OpExamples(_FACTS, _allowed, benchmark=_measured_allowed)
APPLY_MASK = OpExamples(_VOCABULARIES, _masks, benchmark=_measured_masks)
MASK = OpExamples(_FACTS, _mask, by_row=("logits", "top_k", "top_p", "min_p"))
SAMPLE = OpExamples(_FACTS, _sample, benchmark=_greedy, by_row=_CONTROLS)
LOGPROBS = OpExamples(_FACTS, _logprobs, benchmark=_measured_logprobs, by_row=("logits", "token_ids"))

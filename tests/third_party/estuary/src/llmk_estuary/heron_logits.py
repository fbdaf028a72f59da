"""No n-gram twice: tokens that would complete an n-gram which the text already has are ruled out, or made less likely.

Loops in long transcriptions are broken so. Parameters, all but the first optional:

- ``ngram``: the length of n-grams, 1 to 16;
- ``window``: only the last so many tokens of the text are looked at; without it, all;
- ``penalty``: what is taken off the logits, above 0, up to 100; without it, tokens are ruled out;
- ``keep``: ids of up to 64 tokens that may always come again, such as the tags of a table's cells;
- ``prompt``: whether the text starts with the prompt (true, as without it), or with the output.

Embeddings in place of tokens are no tokens: an n-gram with one of them equals no other. Where all tokens that are left
would be ruled out, none is, since something must follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsRequest, LogitsRows, RequestError

LONGEST_NGRAM = 16
MOST_KEPT = 64
GREATEST_PENALTY = 100.0
_PARAMETERS = ("ngram", "window", "penalty", "keep", "prompt")


class NoRepeat:
    """Follows ``llmk.api.LogitsProcessor``. What a row needs is read from the batch's tokens in each step, so that
    nothing is carried over, and drafts that come later don't count."""

    def __init__(self, batch: LogitsBatch) -> None:
        slots, self._width = batch.tokens.shape
        self._tokens = batch.tokens
        self._vocab_size = batch.vocab_size
        zeros = batch.tokens.new_zeros(slots, dtype=torch.int64)
        self._ngram = zeros.clone()
        self._window = zeros.clone()
        self._start = zeros.clone()
        self._penalty = zeros.to(torch.float32)
        self._keep = batch.tokens.new_full((slots, MOST_KEPT), batch.vocab_size, dtype=torch.int64)
        self._sizes: dict[int, tuple[int, int]] = {}
        """By slot: the n-gram's length and the window, which the host needs to know."""

    def enter(self, slot: int, request: LogitsRequest) -> None:
        """Checks the parameters, and notes them for the slot."""
        given = request.parameters
        unknown = next((name for name in given if name not in _PARAMETERS), None)
        if unknown is not None:
            raise _refused(f"there is no parameter {unknown[:40]!a}; there are {', '.join(_PARAMETERS)}")
        if "ngram" not in given:
            raise _refused("ngram is missing")
        ngram = _integer(given, "ngram", 1, LONGEST_NGRAM)
        window = min(_integer(given, "window", 1, 1 << 31), self._width) if "window" in given else self._width
        penalty, keep, prompt = _penalty(given), _kept(given, self._vocab_size), given.get("prompt", True)
        if not isinstance(prompt, bool):
            raise _refused("prompt must be true or false")
        self._ngram[slot] = ngram
        self._window[slot] = window
        self._start[slot] = 0 if prompt else request.num_prompt_tokens
        self._penalty[slot] = penalty
        self._keep[slot] = self._vocab_size
        for at, token_id in enumerate(keep):  # numbers are written in passing; a list would be waited for
            self._keep[slot, at] = token_id
        self._sizes[slot] = ngram, window

    def leave(self, slot: int) -> None:
        """Forgets the slot's parameters."""
        self._sizes.pop(slot, None)
        self._ngram[slot] = 0
        self._window[slot] = 0
        self._start[slot] = 0
        self._penalty[slot] = 0
        self._keep[slot] = self._vocab_size

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """Rules out, or makes less likely, what would complete an n-gram of the text."""
        if not rows.slots:
            return logits
        longest = max(self._sizes[slot][0] for slot in rows.slots)
        width = max(self._sizes[slot][1] for slot in rows.slots)
        ids = self._completing(rows, longest, width)
        # A column more than the vocabulary's, for ids that are none.
        repeats = torch.zeros(logits.shape[0], logits.shape[1] + 1, dtype=torch.bool, device=logits.device)
        nothing = logits.shape[1]
        repeats.scatter_(1, torch.where(ids < self._vocab_size, ids, nothing), True)
        keep = self._keep[rows.index]
        repeats.scatter_(1, torch.where(keep < self._vocab_size, keep, nothing), False)
        repeats = repeats[:, :-1]
        penalty = self._penalty[rows.index, None]
        left = ((logits > -inf) & ~repeats).any(1, keepdim=True)
        repeats = repeats & (left | (penalty < inf))
        return torch.where(repeats, logits - penalty, logits)

    def _completing(self, rows: LogitsRows, longest: int, width: int) -> Tensor:
        """For each of the last ``width`` tokens of each row, its id if what is before it is what is before the next
        token, and else the vocabulary's size: int64 ``[rows, width]``."""
        before = longest - 1
        lengths, ngram = rows.lengths[:, None], self._ngram[rows.index, None]
        span = torch.arange(width + before, device=lengths.device)
        at = lengths - (width + before) + span
        tokens = self._tokens[rows.index[:, None], at.clamp(min=0)].long()
        text = torch.maximum(self._start[rows.index, None], lengths - self._window[rows.index, None])
        same = at[:, before:] >= text + ngram - 1
        for back in range(1, longest):
            own = tokens[:, before - back : before - back + width]
            last = tokens[:, width + before - back, None]
            same &= ((own == last) & (last < self._vocab_size)) | (ngram <= back)
        return torch.where(same, tokens[:, before:], self._vocab_size)


def _refused(message: str) -> RequestError:
    return RequestError(message, param="logits_processors")


def _integer(given: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _refused(f"{name} must be an integer from {least} to {most}")
    return value


def _penalty(given: Mapping[str, Any]) -> float:
    if "penalty" not in given:
        return inf
    value = given["penalty"]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= GREATEST_PENALTY:
        raise _refused(f"penalty must be a number above 0, up to {GREATEST_PENALTY:g}")
    return float(value)


def _kept(given: Mapping[str, Any], vocab_size: int) -> list[int]:
    ids = given.get("keep", [])
    if not isinstance(ids, list | tuple) or len(ids) > MOST_KEPT:
        raise _refused(f"keep must be a list of up to {MOST_KEPT} token ids")
    for each in ids:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < vocab_size:
            raise _refused(f"keep must have ids of tokens alone, from 0 to {vocab_size - 1}")
    return list(ids)

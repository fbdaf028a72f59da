"""A logits processor against loops: DRY ("don't repeat yourself"), for a whole batch at once.

A token is made less likely if it would continue a repetition: if the last tokens stood in the text before, and the
token came after them there. The penalty grows with the length of what is repeated, as ``multiplier * base ** (length -
allowed_length)``, so short phrases, names and idioms stay free. A repetition doesn't reach across a *breaker*, such as
a line break or a role's marker, or across an embedding that stands in place of a token; breakers are never penalized.

What is repeated is looked for in the last :data:`LONGEST_WINDOW` tokens, and measured up to :data:`LONGEST_MATCH`
tokens, so a step takes the same time however long a text is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsProcessor, LogitsRequest, LogitsRows, RequestError

LONGEST_WINDOW = 1024
"""Tokens at the end of a text in which repetitions are found."""

LONGEST_MATCH = 32
"""Tokens that a repetition is counted up to. Longer ones are penalized as this one."""

MOST_BREAKERS = 16

_NO_BREAKER = -1
_OTHER = -2
"""In place of tokens that match nothing, on one side of a comparison; -1 on the other."""

DEFAULTS: Mapping[str, Any] = {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "window": 512, "breakers": []}


class DryProcessor(LogitsProcessor):
    """Penalizes tokens that continue a repetition."""

    def __init__(self, batch: LogitsBatch) -> None:
        self._tokens = batch.tokens
        self._vocab_size = batch.vocab_size
        slots, longest = batch.tokens.shape
        self._span = min(LONGEST_WINDOW, longest)
        self._multiplier = torch.zeros(slots, dtype=torch.float32, device=batch.tokens.device)
        self._base = torch.ones_like(self._multiplier)
        self._allowed = torch.ones(slots, dtype=torch.int64, device=batch.tokens.device)
        self._window = torch.zeros_like(self._allowed)
        self._breakers = batch.tokens.new_full((slots, MOST_BREAKERS), _NO_BREAKER)
        self._back = torch.arange(self._span, device=batch.tokens.device)

    def enter(self, slot: int, request: LogitsRequest) -> None:
        """Checks the parameters, then sets the slot's: single numbers, which no one has to wait for."""
        if not isinstance(request.parameters, Mapping):
            raise RequestError("the parameters must be an object", param="logits_processors.pier.dry")
        options = {**DEFAULTS, **request.parameters}
        if unknown := sorted(options.keys() - DEFAULTS.keys()):
            raise _error(unknown[0], f"is not one of {', '.join(DEFAULTS)}")
        multiplier = _number(options, "multiplier", 0, 100)
        base = _number(options, "base", 1, 4)
        allowed = _integer(options, "allowed_length", 1, LONGEST_MATCH)
        window = _integer(options, "window", 2, LONGEST_WINDOW)
        breakers = self._checked_breakers(options["breakers"])
        self._multiplier[slot] = multiplier
        self._base[slot] = base
        self._allowed[slot] = allowed
        self._window[slot] = window
        for at, token in enumerate(breakers):
            self._breakers[slot, at] = token

    def leave(self, slot: int) -> None:
        """Nothing is penalized in a slot that no one has, and the next one has breakers of its own."""
        self._multiplier[slot] = 0.0
        self._breakers[slot] = _NO_BREAKER

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """Subtracts from each token the penalty of the longest repetition that it would continue."""
        index = rows.index
        at = rows.lengths[:, None] - 1 - self._back
        recent = self._tokens[index[:, None], at.clamp(min=0)]  # [rows, span], the latest first
        inside = (at >= 0) & (self._back < self._window[index, None])
        breaks = (recent[:, :, None] == self._breakers[index][:, None, :]).any(dim=2)
        usable = inside & (recent < self._vocab_size) & ~breaks
        lengths = _matched(recent, usable)
        excess = lengths - self._allowed[index, None]
        penalty = self._multiplier[index, None] * self._base[index, None].pow(excess.clamp(min=0))
        penalty = penalty.masked_fill(~usable | (excess < 0), 0.0)
        # The column behind the last token takes what is no token of the vocabulary.
        totals = logits.new_zeros(logits.shape[0], logits.shape[1] + 1)
        targets = recent.long().masked_fill(~usable, logits.shape[1])
        totals.scatter_reduce_(1, targets, penalty, reduce="amax")
        return logits.sub_(totals[:, :-1])

    def _checked_breakers(self, value: Any) -> list[int]:
        if not isinstance(value, list) or len(value) > MOST_BREAKERS:
            raise _error("breakers", f"must be a list of at most {MOST_BREAKERS} token ids")
        for token in value:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocab_size:
                raise _error("breakers", f"must be token ids below {self._vocab_size}")
        return value


def _matched(recent: Tensor, usable: Tensor) -> Tensor:
    """How many tokens before each of ``recent`` (``[rows, span]``, the latest first) are equal to the last ones of the
    text, up to :data:`LONGEST_MATCH`."""
    padding = (0, LONGEST_MATCH)
    last = torch.nn.functional.pad(recent.masked_fill(~usable, -1), padding, value=-1)
    earlier = torch.nn.functional.pad(recent.masked_fill(~usable, _OTHER), padding, value=_OTHER)
    before = earlier.unfold(1, LONGEST_MATCH, 1)[:, 1:]  # [rows, span, LONGEST_MATCH], the nearest first
    equal = before == last[:, None, :LONGEST_MATCH]
    return equal.to(torch.int32).cumprod(dim=2, dtype=torch.int32).sum(dim=2)


def _number(options: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise _error(name, f"must be a number from {least} to {most}")
    return float(value)


def _integer(options: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _error(name, f"must be an integer from {least} to {most}")
    return value


def _error(name: str, what: str) -> RequestError:
    return RequestError(f"{name[:64]} {what}", param=f"logits_processors.pier.dry.{name[:64]}")

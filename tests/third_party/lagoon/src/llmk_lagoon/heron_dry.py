"""DRY ("don't repeat yourself"), the sampler against loops: ``{"multiplier": 0.8, "base": 1.75, "allowed_length": 2}``.

A token that would extend a repetition becomes less likely the longer the repetition already is: if the last ``n``
tokens stand elsewhere in the text, the token that follows them there loses ``multiplier * base ** (n -
allowed_length)`` of its logit, where ``n`` is ``allowed_length`` at least. ``range`` is how many of the last tokens are
looked at (0: all).
``breakers`` are ids of tokens at which repetitions end, such as line breaks and names: they are part of none, and never
penalized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsRequest, LogitsRows, RequestError

LONGEST = 50
"""Longer repetitions count as these, whose penalty is finite with all parameters."""
LENGTHS = range(LONGEST + 1)
MOST_BREAKERS = 32
MOST_TOKENS = 2**31 - 1
NAMES = ("multiplier", "base", "allowed_length", "range", "breakers")


class DontRepeatYourself:
    """Follows ``llmk.api.LogitsProcessor``. Of each slot it keeps what its parameters mean, on the device: the penalty
    of each length of a repetition, the range, and the breakers."""

    def __init__(self, batch: LogitsBatch) -> None:
        slots, device = len(batch.tokens), batch.tokens.device
        self._tokens = batch.tokens
        self._vocab_size = batch.vocab_size
        self._penalties = torch.zeros(slots, LONGEST + 1, device=device)
        self._range = torch.zeros(slots, dtype=torch.int64, device=device)
        # What stands for embeddings in place of tokens breaks repetitions, since two of them need not be alike.
        self._breakers = torch.full((slots, MOST_BREAKERS + 1), batch.vocab_size, dtype=torch.int64, device=device)

    def enter(self, slot: int, request: LogitsRequest) -> None:
        """A request takes the slot."""
        parameters = {name: value for name, value in request.parameters.items() if value is not None}
        if unknown := sorted(parameters.keys() - set(NAMES)):
            raise RequestError(f"unknown parameter {unknown[0]!r}; there are {', '.join(NAMES)}", param=unknown[0])
        multiplier = _number(parameters, "multiplier", None, 0.0, 100.0)
        base = _number(parameters, "base", 1.75, 1.0, 4.0)
        allowed = _whole(parameters, "allowed_length", 2, 1, LONGEST)
        seen = _whole(parameters, "range", 0, 0, MOST_TOKENS) or MOST_TOKENS
        breakers = self._checked_breakers(parameters.get("breakers", []))
        penalties = [multiplier * base ** (length - allowed) if length >= allowed else 0.0 for length in LENGTHS]
        self._penalties[slot] = torch.tensor(penalties)
        self._range[slot] = seen
        self._breakers[slot] = torch.tensor(breakers + [self._vocab_size] * (MOST_BREAKERS + 1 - len(breakers)))

    def leave(self, slot: int) -> None:
        """The request has ended, or was preempted."""
        self._penalties[slot] = 0.0
        self._range[slot] = 0
        self._breakers[slot] = self._vocab_size

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """New logits for float32 ``[rows, vocab]``."""
        tokens = self._tokens[rows.index]
        breakers = self._breakers[rows.index]
        matched = self._matched(tokens, rows.lengths, self._range[rows.index], breakers)
        penalties = self._penalties[rows.index].gather(1, matched)
        # The last column is for embeddings, and for what stands behind the text.
        ids = tokens.long().where(matched > 0, self._vocab_size)
        lowered = logits.new_zeros(len(logits), self._vocab_size + 1)
        lowered = lowered.scatter_reduce(1, ids, penalties, "amax").scatter(1, breakers, 0.0)
        return logits - lowered[:, : self._vocab_size]

    def _matched(self, tokens: Tensor, lengths: Tensor, ranges: Tensor, breakers: Tensor) -> Tensor:
        """For each position of ``tokens`` (``[rows, width]``), how many tokens before it are the text's last ones; 0
        where there is no token. It compares all positions with the last token, then with the one before, and so on."""
        width = tokens.shape[1]
        at = torch.arange(width, device=tokens.device)
        inside = (at < lengths[:, None]) & (at >= (lengths - ranges)[:, None])
        going = inside.clone()
        matched = torch.zeros_like(tokens, dtype=torch.int64)
        for back in range(1, min(LONGEST, width - 1) + 1):
            last = tokens.gather(1, (lengths - back).clamp_min(0)[:, None])
            equal = (tokens == last) & inside & (last != breakers).all(1, keepdim=True)
            going[:, back:] &= equal[:, :-back]
            going[:, :back] = False
            matched += going
        return matched

    def _checked_breakers(self, breakers: Any) -> list[int]:
        """The parameter ``breakers``."""
        if not isinstance(breakers, list) or len(breakers) > MOST_BREAKERS:
            raise RequestError(f"breakers must be a list of up to {MOST_BREAKERS} token ids", param="breakers")
        return [_whole({"breakers": each}, "breakers", 0, 0, self._vocab_size - 1) for each in breakers]


def _number(parameters: Mapping[str, Any], name: str, default: float | None, least: float, most: float) -> float:
    """A parameter that is a number; without a default, it is required."""
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise RequestError(f"{name} must be a number from {least:g} to {most:g}", param=name)
    return float(value)


def _whole(parameters: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """A parameter that is a whole number; JSON may write it with a fraction of 0."""
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or value % 1:
        raise RequestError(f"{name} must be a whole number from {least} to {most}", param=name)
    return int(value)

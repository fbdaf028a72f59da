"""DRY ("don't repeat yourself"): tokens that would continue a repetition are less likely, the more the longer it is.

Where the end of a text has appeared before, the token that followed it there is a candidate for repetition. If the
match is ``length`` tokens long, and that is ``allowed_length`` at least, the logit of the candidate is lowered by
``multiplier * base ** (length - allowed_length)``; of several matches, the longest counts. Unlike other penalties, it
does not touch single words that a text needs again and again. ``sequence_breakers`` are token ids that no match goes
beyond, such as those of quotes and line breaks. Parameters of a request, all but the first optional::

    {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "window": 1024, "sequence_breakers": [13, 198]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsRequest, LogitsRows, RequestError

LONGEST = 24
"""Length of a match, in tokens, from which on longer ones count the same, so that penalties stay finite."""
MOST_BREAKERS = 8
NOTHING, BREAKER = -1, -2
"""What stands for a token beyond the window, and for one at which matches end; they differ from all ids."""


@dataclass(frozen=True, slots=True)
class Options:
    """The parameters of a request."""

    multiplier: float
    base: float
    allowed_length: int
    window: int
    breakers: tuple[int, ...]


def options_of(parameters: Mapping[str, Any], vocab_size: int) -> Options:
    """Checks the parameters of a request."""
    known = {"multiplier", "base", "allowed_length", "window", "sequence_breakers"}
    if unknown := sorted(set(parameters) - known):
        raise refused(unknown[0], f"is unknown; there are {', '.join(sorted(known))}")
    breakers = parameters.get("sequence_breakers", [])
    if not isinstance(breakers, list) or len(breakers) > MOST_BREAKERS:
        raise refused("sequence_breakers", f"must be a list of up to {MOST_BREAKERS} token ids")
    for place, breaker in enumerate(breakers):
        if not is_number(breaker) or not 0 <= breaker < vocab_size or breaker != int(breaker):
            raise refused(f"sequence_breakers.{place}", f"must be a token id, from 0 to {vocab_size - 1}")
    return Options(
        multiplier=number(parameters, "multiplier", 0.0, 100.0, None),
        base=number(parameters, "base", 1.0, 4.0, 1.75),
        allowed_length=whole(parameters, "allowed_length", 1, 16, 2),
        window=whole(parameters, "window", 1, 4096, 1024),
        breakers=tuple(int(breaker) for breaker in breakers),
    )


def is_number(value: object) -> bool:
    """Whether it is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(parameters: Mapping[str, Any], name: str, least: float, most: float, default: float | None) -> float:
    """A number within a range; without a default it must be given."""
    value = parameters.get(name, default)
    if not is_number(value) or not least <= value <= most:
        raise refused(name, f"must be a number from {least:g} to {most:g}")
    return float(value)


def whole(parameters: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    """A whole number within a range; JSON may write it with a fraction of 0."""
    value = number(parameters, name, least, most, default)
    if not value.is_integer():
        raise refused(name, "must be a whole number")
    return int(value)


def refused(name: str, why: str) -> RequestError:
    """The error for a parameter."""
    return RequestError(f"{name} {why}", param=f"logits_processors.ibis.dry.{name}")


class Dry:
    """Follows ``llmk.api.LogitsProcessor``. Options are kept by slot, on the device; matches are searched anew for each
    row, since drafts may be taken back."""

    def __init__(self, batch: LogitsBatch) -> None:
        slots, width = batch.tokens.shape
        device = batch.tokens.device
        self._tokens = batch.tokens
        self._vocab_size = batch.vocab_size
        self._width = width
        self._multipliers = torch.zeros(slots, device=device)
        self._bases = torch.ones(slots, device=device)
        self._allowed = torch.ones(slots, dtype=torch.int64, device=device)
        self._windows = torch.zeros(slots, dtype=torch.int64, device=device)
        self._breakers = torch.full((slots, MOST_BREAKERS), NOTHING, dtype=torch.int32, device=device)
        self._widest = [0] * slots  # the windows once more, on the host

    def enter(self, slot: int, request: LogitsRequest) -> None:
        """A request takes the slot."""
        options = options_of(request.parameters, self._vocab_size)
        padding = [NOTHING] * (MOST_BREAKERS - len(options.breakers))
        self._multipliers[slot] = options.multiplier
        self._bases[slot] = options.base
        self._allowed[slot] = options.allowed_length
        self._windows[slot] = options.window
        self._breakers[slot] = torch.tensor([*options.breakers, *padding], dtype=torch.int32)
        self._widest[slot] = options.window

    def leave(self, slot: int) -> None:
        """The slot is free: it changes no logits, and widens no search."""
        self._multipliers[slot] = 0.0
        self._windows[slot] = 0
        self._widest[slot] = 0

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """New logits for float32 ``[rows, vocab]``."""
        candidates, matched = self._matches(rows)
        allowed = self._allowed[rows.index][:, None]
        excess = (matched - allowed).clamp_min(0)
        penalties = self._multipliers[rows.index][:, None] * self._bases[rows.index][:, None] ** excess
        # Embeddings, breakers and what is beyond the window have a column of their own, which is cut off.
        vocab = logits.shape[1]
        punished = (matched >= allowed) & (candidates >= 0) & (candidates < vocab)
        columns = torch.where(punished, candidates, vocab).long()
        lowered = logits.new_zeros(len(logits), vocab + 1).scatter_reduce(1, columns, penalties, "amax")
        return logits - lowered[:, :vocab]

    def _matches(self, rows: LogitsRows) -> tuple[Tensor, Tensor]:
        """Each row's tokens, the last first, with breakers replaced; and how many tokens before each are also the last
        tokens of the row."""
        window = min(self._width, max(self._widest[slot] for slot in rows.slots))
        back = torch.arange(window + LONGEST, device=self._tokens.device)[None, :]
        lengths = rows.lengths[:, None]
        inside = (back < lengths) & (back < self._windows[rows.index][:, None])
        tokens = self._tokens[rows.index[:, None], (lengths - 1 - back).clamp_min(0)]
        ends = tokens == self._vocab_size
        for column in range(MOST_BREAKERS):
            ends |= tokens == self._breakers[rows.index, column][:, None]
        tokens = tokens.masked_fill(ends, BREAKER).masked_fill(~inside, NOTHING)
        # What a match is compared with: the end of the text, in which a breaker equals nothing.
        suffix = tokens[:, :LONGEST].masked_fill(tokens[:, :LONGEST] < 0, BREAKER - 1)
        going = torch.ones_like(tokens[:, :window], dtype=torch.bool)
        matched = torch.zeros_like(tokens[:, :window], dtype=torch.int64)
        for length in range(min(LONGEST, window)):
            before = tokens[:, length + 1 : length + 1 + window]
            before = torch.nn.functional.pad(before, (0, window - before.shape[1]), value=NOTHING)
            going &= before == suffix[:, length][:, None]
            matched += going
        return tokens[:, :window], matched

"""Drafts that the text goes on with a period: by how much the last tokens agree with those some way before them
(autocorrelation), which a token or two that differ, such as a number that counts, does not prevent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from llmk.api import DeviceSpeculator, SpeculatorContext

from .swift_options import Options

if TYPE_CHECKING:
    from torch import Tensor

_NOTHING = -1
"""Stands for what is no token: the time before a text, and embeddings. As a draft, that there is none."""


class Period(DeviceSpeculator):
    """Follows ``llmk.api.DeviceSpeculator``: the same operators for equal shapes, and no state."""

    def __init__(self, context: SpeculatorContext) -> None:
        options = Options.model_validate(dict(context.options))
        self._vocab_size = context.vocab_size
        self._span = options.period_span
        self._longest = options.period_longest
        self._least = options.period_least

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        """What followed one period before, again and again; nothing from embeddings on."""
        recent = self._recent(tokens, known, slots)
        period, is_sure = self._period(recent)
        ahead = torch.arange(width, device=tokens.device)
        place = recent.shape[1] - period[:, None] + ahead % period[:, None]
        drafts = recent.gather(1, place)
        is_void = (drafts == _NOTHING).cumsum(dim=1) > 0
        return drafts.masked_fill(is_void | ~is_sure[:, None], _NOTHING)

    def _recent(self, tokens: Tensor, known: Tensor, slots: Tensor) -> Tensor:
        """The last tokens of each request, int64 ``[requests, longest + span]``."""
        rows = slots.clamp(min=0)
        back = torch.arange(self._longest + self._span, 0, -1, device=tokens.device)
        place = known.clamp(min=1)[:, None] - back
        found = tokens[rows[:, None], place.clamp(min=0)].to(torch.int64)
        return found.masked_fill((place < 0) | (found >= self._vocab_size), _NOTHING)

    def _period(self, recent: Tensor) -> tuple[Tensor, Tensor]:
        """The lag at which most of the last ``span`` tokens agree, of several the shortest, int64 ``[requests]``, and
        whether enough of them do. The very last one must."""
        last = recent[:, None, -self._span :]
        before = recent.unfold(1, self._span, 1)[:, :-1].flip(1)
        agree = (before == last) & (last != _NOTHING)
        score = agree.sum(dim=-1).masked_fill(~agree[:, :, -1], 0)
        lags = torch.arange(1, self._longest + 1, device=recent.device)
        best = (score * (self._longest + 1) - lags).argmax(dim=1)
        return best + 1, score.gather(1, best[:, None]).squeeze(1) >= self._least

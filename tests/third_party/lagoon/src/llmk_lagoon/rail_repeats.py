"""Drafts on the device by repeats, as LZ77 finds them: the longest run in a window behind the end that is equal to the
request's last tokens, and what followed it. Of equally long ones, the latest.

What is copied may reach the end of the text. It then goes on with what it has copied itself, so that a run that repeats
with a short period is drafted in full width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import DeviceSpeculator, SpeculatorContext

from .rail_specs import Options


class RepeatSpeculator(DeviceSpeculator):
    """Follows ``llmk.api.DeviceSpeculator``. All shapes depend on those of the arguments alone."""

    def __init__(self, context: SpeculatorContext) -> None:
        options = Options.model_validate(dict(context.options))
        self._longest, self._shortest = options.longest_repeat, options.shortest_repeat
        self._window = min(options.window, context.max_len)
        self._vocab_size = context.vocab_size

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        """Follows the protocol."""
        text = self._from_the_end(tokens, known, slots)
        distance, length = self._longest_match(text)
        return self._copy(text, distance, length, width)

    def _from_the_end(self, tokens: Tensor, known: Tensor, slots: Tensor) -> Tensor:
        """int32 ``[requests, window + longest]``: the tokens from a request's last one backwards. -1 stands for what is
        no token: before the first one, and given embeddings."""
        back = torch.arange(self._window + self._longest, device=tokens.device)
        at = known.clamp(max=tokens.shape[1] - 1)[:, None] - 1 - back
        text = tokens[slots.clamp(min=0)[:, None], at.clamp(min=0)]
        return torch.where((at >= 0) & (text < self._vocab_size), text, -1)

    def _longest_match(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """By request, how far back the longest match is, 1 or more, and its length up to ``longest``."""
        equal = torch.ones(len(text), self._window, dtype=torch.bool, device=text.device)
        length = torch.zeros(len(text), self._window, dtype=torch.int64, device=text.device)
        for step in range(self._longest):
            token = text[:, step : step + 1]
            equal &= (text[:, step + 1 : step + 1 + self._window] == token) & (token >= 0)
            length += equal
        nearness = torch.arange(self._window, 0, -1, device=text.device)
        best = (length * (self._window + 1) + nearness).argmax(1, keepdim=True)
        return best + 1, length.gather(1, best)

    def _copy(self, text: Tensor, distance: Tensor, length: Tensor, width: int) -> Tensor:
        """The tokens behind the match; -1 where there is none, and from a given embedding on."""
        step = torch.arange(width, device=text.device)
        drafts = text.gather(1, distance - 1 - step % distance).long()
        is_good = ((drafts >= 0) & (length >= self._shortest)).cumprod(1).bool()
        return torch.where(is_good, drafts, -1)

"""Drafts on the device: where the end of a request occurred before, the text between goes on.

The tokens between the earlier occurrence and the end are taken for one period of the text, which is repeated as often
as drafts are wanted, so that there are ``width`` drafts also of a match right before the end. All of it are tensor
operators of fixed shapes: nothing waits for the device, and a recorded step stays true.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import DeviceSpeculator, SpeculatorContext

NOTHING = -1
"""The draft that says there is none."""


class Period(DeviceSpeculator):
    """Follows ``llmk.api.DeviceSpeculator``.

    The earlier place is the one before which most tokens equal the last ones, counted up to ``match``; of several, the
    latest. Where they are fewer than ``min_match``, nothing is drafted.
    """

    def __init__(self, context: SpeculatorContext) -> None:
        options = context.options
        self._vocab_size = context.vocab_size
        self._min_match = int(options.get("min_match", 2))
        self._match = max(self._min_match, int(options.get("match", 8)))

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        """Drafts, int64 ``[requests, width]``. Padding, whose slot is -1, reads the first slot; nobody reads that."""
        rows = tokens[slots.clamp(min=0)]
        last = (known - 1).unsqueeze(1)
        at, length = self._longest(rows, last)
        period = (last - at).clamp(min=1)
        steps = torch.arange(width, device=tokens.device).unsqueeze(0)
        source = (at + 1 + steps % period).clamp(0, rows.shape[1] - 1)
        drafts = rows.gather(1, source).long()
        # An embedding among them has no token, and what follows it can't be accepted either.
        usable = (length >= self._min_match) & (drafts >= 0) & (drafts < self._vocab_size)
        return torch.where(usable.long().cumprod(dim=1) > 0, drafts, NOTHING)

    def _longest(self, rows: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Where the longest match ends, and its length, each int64 ``[requests, 1]``. ``last`` is the place of each
        request's last token."""
        size = rows.shape[1]
        place = torch.arange(size, device=rows.device, dtype=torch.int32).unsqueeze(0)
        # Only places before the last token, so that what is compared, and what follows, is known.
        running = place < last
        length = torch.zeros_like(rows)
        for back in range(min(self._match, size)):
            wanted = rows.gather(1, (last - back).clamp(0, size - 1))
            exists = (last >= back) & (wanted >= 0) & (wanted < self._vocab_size)
            running = running & exists
            running[:, :back] = False  # there is no token so far before these
            running[:, back:] &= rows[:, : size - back] == wanted
            length = length + running
        score = length * size + place
        best = score.argmax(dim=1, keepdim=True)
        return best, length.gather(1, best).long()

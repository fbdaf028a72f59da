"""Prompt lookup on the device, for the whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import DeviceSpeculator, SpeculatorContext


class DevicePromptLookup(DeviceSpeculator):
    """Drafts as :class:`~llmk_speculators.lookup.PromptLookup` does, by comparing all tokens of the requests."""

    def __init__(self, context: SpeculatorContext) -> None:
        self._min_match = context.options["min_match"]
        self._max_match = context.options["max_match"]

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        """Drafts, int64 ``[requests, width]``; -1 where nothing is drafted."""
        return look_up(tokens, known, slots, width, self._min_match, self._max_match)


def look_up(tokens: Tensor, known: Tensor, slots: Tensor, width: int, min_match: int, max_match: int) -> Tensor:
    """The tokens that followed the latest of the longest matches of each request's last ``max_match`` to ``min_match``
    tokens. Where they reach its last known token, they go on with themselves.

    Args:
        tokens: int32 ``[slots, size]``, the tokens of each slot's request.
        known: int64 ``[requests]``, how many of them are known; tokens beyond are not used.
        slots: int64 ``[requests]``, rows of ``tokens``; -1 is padding.

    Returns:
        int64 ``[requests, width]``; -1 where there is no match.
    """
    rows = tokens.index_select(0, slots.clamp(min=0))
    size = rows.shape[1]
    known = known.clamp(1, size)[:, None]
    place = torch.arange(size, device=tokens.device, dtype=torch.int32)
    alive = place < known - 1  # where a match may end, so that a known token follows
    length = torch.zeros_like(rows, dtype=torch.int8)
    for offset in range(min(max_match, size)):
        last = rows.gather(1, (known - 1 - offset).clamp(min=0))
        alive[:, offset:] &= rows[:, : size - offset] == last
        alive[:, :offset] = False
        length += alive
    score = torch.where(length >= min_match, length.int() * size + place, -1)
    best = score.amax(1, keepdim=True).long()
    start = best % size + 1
    steps = torch.arange(width, device=tokens.device)
    drafts = rows.gather(1, (start + steps % (known - start).clamp(min=1)).clamp(max=size - 1)).long()
    return torch.where((best >= 0) & (slots[:, None] >= 0), drafts, -1)

"""A speculator on the device: where the last tokens repeat those before them, the loop goes on.

A request loops with a period of ``p`` tokens where each of its last ``proof`` tokens is the one ``p`` before it. Of
several periods, the shortest counts. What is drafted is the last period, again and again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import DeviceSpeculator, SpeculatorContext
from llmk_meadow.options import read


class Loops(DeviceSpeculator):
    """Looks at the last ``longest + proof`` tokens of each request."""

    def __init__(self, context: SpeculatorContext) -> None:
        options = read(context.options)
        self._longest = min(options.longest, context.max_len)
        self._proof = options.proof

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        """The shortest loop of each request; -1 where there is none."""
        newest = self._newest(tokens, known, slots)
        periods = torch.arange(1, self._longest + 1, device=tokens.device)
        none = self._longest + 1
        loops = self._loops(newest) & (known[:, None] >= periods + self._proof)
        period = torch.where(loops, periods, none).amin(1, keepdim=True)
        steps = torch.arange(width, device=tokens.device)
        back = period - 1 - steps % period
        drafts = newest.gather(1, back.clamp(max=newest.shape[1] - 1))
        return torch.where(period < none, drafts, -1)

    def _newest(self, tokens: Tensor, known: Tensor, slots: Tensor) -> Tensor:
        """The last tokens of each request, the newest first, int64 ``[requests, longest + proof]``. What stands before
        the first token is arbitrary."""
        back = torch.arange(1, self._longest + self._proof + 1, device=tokens.device)
        at = (known[:, None] - back).clamp(min=0)
        return tokens[slots.clamp(min=0)[:, None], at].long()

    def _loops(self, newest: Tensor) -> Tensor:
        """Whether the last ``proof`` tokens repeat what is so many tokens before them, ``[requests, longest]``."""
        windows = newest.unfold(1, self._proof, 1)
        return (windows[:, 1:] == windows[:, :1]).all(2)

"""``{"size": 3}``: no ``size`` tokens in a row are said twice. ``{"size": 3, "output": true}``: the prompt may be
repeated."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsRequest, LogitsRows, RequestError

MOST = 8


class NoRepeats:
    """The state of a slot: the size, and where the tokens start that may not be repeated."""

    def __init__(self, batch: LogitsBatch) -> None:
        self._tokens = batch.tokens
        self._sizes = torch.zeros(len(batch.tokens), dtype=torch.int64, device=batch.tokens.device)
        self._starts = torch.zeros_like(self._sizes)

    def enter(self, slot: int, request: LogitsRequest) -> None:
        """Reads the parameters."""
        given = dict(request.parameters)
        size, output = given.pop("size", None), given.pop("output", False)
        if given:
            raise RequestError(f"there is no parameter {min(given)!r}: name size or output", param="logits_processors")
        if type(size) is not int or not 2 <= size <= MOST:
            raise RequestError(f"size must be a whole number from 2 to {MOST}", param="logits_processors")
        if type(output) is not bool:
            raise RequestError("output must be true or false", param="logits_processors")
        self._sizes[slot] = size
        self._starts[slot] = request.num_prompt_tokens if output else 0

    def leave(self, slot: int) -> None:
        """The slot is free."""
        self._sizes[slot] = 0

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """Rules out each token that once followed the last ``size - 1`` tokens."""
        tokens = self._tokens[rows.index].long()
        sizes, starts, ends = self._sizes[rows.index, None], self._starts[rows.index, None], rows.lengths[:, None]
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        same = (places >= starts + sizes - 1) & (places < ends)
        for back in range(1, MOST):
            before = tokens.gather(1, (places - back).clamp_min(0).expand_as(tokens))
            last = tokens.gather(1, (ends - back).clamp_min(0))
            same &= (before == last) | (back >= sizes)
        same &= ends - starts >= sizes
        banned = torch.zeros_like(logits, dtype=torch.int32)
        banned.scatter_add_(1, tokens.clamp(0, logits.shape[1] - 1), same.int())
        return logits.masked_fill(banned > 0, -torch.inf)

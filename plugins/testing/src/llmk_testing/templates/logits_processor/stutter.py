"""``{"penalty": 2}``: the amount by which the logit of a request's last token is lowered."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import LogitsBatch, LogitsRequest, LogitsRows, RequestError

MOST = 100.0


class NoStutter:
    """Follows ``llmk.api.LogitsProcessor``. One instance serves the whole batch: it keeps the state of each request by
    slot, on the device, and changes all rows at once, without synchronizing with the device."""

    def __init__(self, batch: LogitsBatch) -> None:
        self._tokens = batch.tokens
        self._penalties = torch.zeros(len(batch.tokens), device=batch.tokens.device)

    def enter(self, slot: int, request: LogitsRequest) -> None:
        """A request takes the slot. Its parameters may be any JSON: refuse invalid ones."""
        parameters = dict(request.parameters)
        penalty = parameters.pop("penalty", None)
        if parameters:
            raise RequestError(f"unknown parameter {min(parameters)!r}; there is penalty", param="logits_processors")
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty <= MOST:
            raise RequestError(f"penalty must be a number from 0 to {MOST:g}", param="logits_processors")
        self._penalties[slot] = penalty

    def leave(self, slot: int) -> None:
        """The request has ended, or was preempted."""
        self._penalties[slot] = 0.0

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """New logits for float32 ``[rows, vocab]``."""
        last = self._tokens[rows.index, rows.lengths - 1].long()
        most = logits.shape[1] - 1  # above it is the id of embeddings, which a prompt may have in place of tokens
        penalties = self._penalties[rows.index].where(last <= most, 0.0)
        return logits.scatter_add(1, last.clamp_max(most)[:, None], -penalties[:, None])

"""Heads of a model that are never wrong, as long as they are given what belongs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk_testing.drafting import VOCAB


@dataclass(frozen=True)
class KnownRows:
    """Rows: the request of each, and its position."""

    places: tuple[tuple[int, int], ...]


class KnowingHeads:
    """Follows ``llmk.api.DraftHeads``, of requests whose every token is known (:func:`token_of`).

    A hidden state is a request, the index of the token that it predicts, and whether it was computed of what belongs
    together: head ``k`` at position ``i`` needs a state that predicts the token at ``i + 1 + k``, and that token.

    Args:
        lasts: of each request, the position of the row whose hidden state drafts are proposed by.
        counts: drafts that are wanted of each.
    """

    def __init__(self, count: int, lasts: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        self.count = count
        self._lasts, self._counts, self._device = lasts, counts, device

    def __call__(self, head: int, hidden: Tensor, following: Tensor, rows: KnownRows) -> Tensor:
        """See :class:`llmk.api.DraftHeads`."""
        assert 0 <= head < self.count, f"head {head} was called, of {self.count}"
        places = torch.tensor(rows.places, device=self._device).view(-1, 2)
        request, index = places[:, 0], places[:, 1] + 1 + head
        belongs = (hidden[:, 0] == request) & (hidden[:, 1] == index) & (hidden[:, 2] == 1)
        return states(request, index + 1, belongs & (following == token_of(request, index)))

    def most_likely(self, hidden: Tensor) -> Tensor:
        """See :class:`llmk.api.DraftHeads`."""
        right = token_of(hidden[:, 0].long(), hidden[:, 1].long())
        return torch.where(hidden[:, 2] == 1, right, (right + 1) % VOCAB)

    def rows(self, count: int, ahead: int) -> KnownRows:
        """See :class:`llmk.api.DraftHeads`."""
        assert 0 <= ahead < min(self._counts[:count]), f"rows {ahead} ahead were requested, of {self._counts[:count]}"
        return KnownRows(tuple((request, self._lasts[request] + ahead) for request in range(count)))


def token_of(request: Tensor, index: Tensor) -> Tensor:
    """The tokens of requests, int64: those of a request are unlike those next to them."""
    return (31 * request + 7 * index * index + 3 * index) % VOCAB


def states(request: Tensor, index: Tensor, right: Tensor) -> Tensor:
    """Hidden states that predict the token number ``index`` of ``request``, float32 ``[rows, 3]``."""
    return torch.stack([request.float(), index.float(), right.float()], 1)

"""Speculators by heads of the model that make mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from defects import Defect
from llmk.api import DraftHeads, HeadSpeculator, SpeculatorContext


class Good(HeadSpeculator):
    """Drafts by the first head alone, which goes on from what it computed."""

    def __init__(self, context: SpeculatorContext) -> None:
        pass

    def follow(self, heads: DraftHeads, hidden: Tensor, following: Tensor, rows: Any) -> Tensor:
        return heads(0, hidden, following[:, 0], rows)

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        drafts = torch.full((len(counts), counts[0]), -1, device=hidden.device)
        for number in range(counts[0]):
            left = sum(count > number for count in counts)
            if number:
                hidden = heads(0, hidden[:left], drafts[:left, number - 1], heads.rows(left, number))
            drafts[:left, number] = heads.most_likely(hidden[:left])
        return drafts


class Blind(Good):
    """Computes heads of drafts alone."""

    def follow(self, heads: DraftHeads, hidden: Tensor, following: Tensor, rows: Any) -> Tensor:
        return hidden


class Second(Good):
    """Drafts by a head that has not computed what was known."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        if heads.count > 1:
            heads(1, hidden, heads.most_likely(hidden), heads.rows(len(counts), 0))
        return super().propose(heads, hidden, counts)


class Last(Good):
    """Returns the last row of a step alone."""

    def follow(self, heads: DraftHeads, hidden: Tensor, following: Tensor, rows: Any) -> Tensor:
        return super().follow(heads, hidden, following, rows)[-1:]


class Whole(Good):
    """Goes on for requests that want no more drafts, whose blocks end there."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return super().propose(heads, hidden, [counts[0]] * len(counts))


class Small(Good):
    """Drafts int32."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return super().propose(heads, hidden, counts).int()


class Narrow(Good):
    """Drafts one token, no matter how many are wanted."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return super().propose(heads, hidden, [1] * len(counts))


class Silent(Good):
    """Never drafts."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return torch.full((len(counts), counts[0]), -1, device=hidden.device)


class Mixing(Good):
    """Drafts by the mean hidden state of the batch."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return super().propose(heads, hidden.mean(0, keepdim=True).expand_as(hidden), counts)


class Remembering(Good):
    """Drafts what it drafted first."""

    def __init__(self, context: SpeculatorContext) -> None:
        self._first: Tensor | None = None

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        drafts = super().propose(heads, hidden, counts)
        if self._first is None or self._first.shape != drafts.shape:
            self._first = drafts
        return self._first


class Writing(Good):
    """Norms hidden states in place."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return super().propose(heads, hidden.div_(hidden.norm(dim=1, keepdim=True)), counts)


class Restarting(Good):
    """Each draft goes on from the hidden state of the first."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        drafts = torch.full((len(counts), counts[0]), -1, device=hidden.device)
        drafts[:, 0] = heads.most_likely(hidden)
        for number in range(1, counts[0]):
            left = sum(count > number for count in counts)
            found = heads(0, hidden[:left], drafts[:left, number - 1], heads.rows(left, number))
            drafts[:left, number] = heads.most_likely(found)
        return drafts


class Unmoved(Good):
    """Hands on the model's own hidden state."""

    def follow(self, heads: DraftHeads, hidden: Tensor, following: Tensor, rows: Any) -> Tensor:
        super().follow(heads, hidden, following, rows)
        return hidden


class Waiting(Good):
    """Stops where the first draft is the end of a text, which it reads back."""

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        drafts = super().propose(heads, hidden, counts)
        return drafts if drafts[0, 0].item() else torch.full_like(drafts, -1)


NEVER_WRONG = "heads that are never wrong"
SHAPE = "int64 of the requests and the greatest count"
DEFECTS = (
    Defect("blind", "heads don't compute the tokens of a step", Blind, "have seen every token"),
    Defect("second", "one head does not compute the tokens of a step", Second, "have seen every token"),
    Defect("last", "after a step, only its last row is returned", Last, "a row per token"),
    Defect("whole", "heads compute rows that have no blocks", Whole, SHAPE),
    Defect("small", "drafts are int32", Small, SHAPE),
    Defect("narrow", "fewer columns are returned than are wanted", Narrow, SHAPE),
    Defect("silent", "nothing is ever drafted", Silent, "something is drafted"),
    Defect("restarting", "each draft goes on from the first hidden state", Restarting, NEVER_WRONG),
    Defect("unmoved", "what is handed on is the model's hidden state", Unmoved, NEVER_WRONG),
    Defect("mixing", "drafts are made of other requests' states", Mixing, "the request's hidden state"),
    Defect("remembering", "drafts of a former step are returned again", Remembering, "nothing is kept"),
    Defect("writing", "hidden states are changed", Writing, "stay as they are"),
    Defect("waiting", "the host waits for the device", Waiting, "never waits"),
)

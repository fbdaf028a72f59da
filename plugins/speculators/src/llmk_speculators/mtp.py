"""Multi-token prediction: drafts by the heads that a model was trained with to predict further tokens.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2: head ``k`` reads the hidden state that the model or the
head before has of a position, and the token ``k + 1`` behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from llmk.api import DraftHeads, HeadSpeculator, SpeculatorContext


class MultiTokenPrediction(HeadSpeculator):
    """Each head drafts one token. For more, the last one goes on from its own hidden states and drafts, a position
    further each time; so one head drafts as many as are wanted.

    A draft costs a layer of one token, and the logits. The heads compute every token of every step, as their own
    attention needs all of them.
    """

    def __init__(self, context: SpeculatorContext) -> None:
        """``context`` has no option for it."""

    def follow(self, heads: DraftHeads, hidden: Tensor, following: Tensor, rows: Any) -> Tensor:
        """Runs all heads; the hidden states of the first draft the first token."""
        found = [hidden]
        for head in range(heads.count):
            found.append(heads(head, found[-1], following[:, head], rows))
        return found[1]

    def propose(self, heads: DraftHeads, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        """Drafts, int64 ``[requests, counts[0]]``; -1 where fewer are wanted."""
        drafts = [heads.most_likely(hidden)]
        for number in range(1, counts[0]):
            left = sum(count > number for count in counts)
            head, ahead = min(number, heads.count - 1), max(0, number - heads.count + 1)
            hidden = heads(head, hidden[:left], drafts[-1][:left], heads.rows(left, ahead))
            drafts.append(heads.most_likely(hidden))
        return torch.stack([_padded(each, len(counts)) for each in drafts], dim=1)


def _padded(drafts: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(drafts, (0, size - drafts.shape[0]), value=-1)

"""Top-k, top-p and min-p: computes the least logit that sampling keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_WEIGHT_BITS = 24
"""The most likely token has weight 2**24. With up to 2**18 tokens, a row's weights sum to less than 2**42: see
:func:`llmk.reference.sampling.sample.sample`."""

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Truncation:
    """Top-k, top-p and min-p of a batch, each ``[R]``, as in
    :func:`llmk.reference.sampling.sample.mask_top_k_top_p_min_p`."""

    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None

    @property
    def off(self) -> bool:
        """Whether it is off for all rows, as far as that is known without reading a tensor."""
        return self.top_k is None and self.top_p is None and self.min_p is None

    def of(self, rows: Tensor) -> Truncation:
        """The truncation of ``rows`` (int64)."""
        return Truncation(*(None if t is None else t[rows] for t in (self.top_k, self.top_p, self.min_p)))

    def floor(self, logits: Tensor) -> Tensor:
        """The least logit to keep, float32 ``[R]``; ``logits`` are float32 ``[R, V]`` whose greatest element is 0."""
        if self.top_k is None and self.top_p is None:
            return self.floor_of_sorted(logits[:, :0], logits.shape[1], None)
        total = None if self.top_p is None else integer_weights(logits).sum(dim=-1)
        return self.floor_of_sorted(logits.sort(dim=-1, descending=True).values, logits.shape[1], total)

    def floor_of_sorted(self, values: Tensor, vocab: int, total: Tensor | None) -> Tensor:
        """:meth:`floor` from the greatest logits only. The result is final for rows in which it is greater than the
        last of these logits.

        Args:
            values: float32 ``[R, K]``, the ``K`` greatest of ``vocab`` logits, descending from 0.
            total: int64 ``[R]``, the sum of the weights of the whole row; needed if there is a ``top_p``.
        """
        rows, listed = values.shape
        floor = torch.full((rows,), float("-inf"), device=values.device)
        kept = torch.full((rows,), vocab, device=values.device)
        if self.top_k is not None:
            kept = torch.where(self.top_k > 0, self.top_k, kept).clamp(max=vocab)
        if self.top_p is not None and total is not None:
            weights = integer_weights(values)
            cumulative = weights.cumsum(dim=-1)
            last = kept.clamp(max=listed)[:, None] - 1
            mass = torch.where(kept < vocab, cumulative.gather(1, last).squeeze(1), total)
            goal = (self.top_p * mass).ceil().to(torch.int64)
            # If top-k is longer than the list, its probability mass is unknown: keep the whole list, which is never
            # final.
            goal = goal.masked_fill((kept > listed) & (kept < vocab), _NEVER)
            nucleus = (cumulative - weights < goal[:, None]).sum(dim=-1).clamp(min=1)
            kept = torch.where(self.top_p < 1, torch.minimum(kept, nucleus), kept)
        if self.top_k is not None or self.top_p is not None:
            last = kept.clamp(max=listed)[:, None] - 1
            floor = torch.where(kept < vocab, values.gather(1, last).squeeze(1), floor)
        return floor if self.min_p is None else torch.maximum(floor, self.min_p.log())


def integer_weights(logits: Tensor) -> Tensor:
    """``2**24 * exp(logit)``, rounded, int64; ``logits`` are float32 ``[R, V]`` whose greatest element is 0.

    Sums of integers don't depend on the order of addition.
    """
    return logits.exp().mul_(1 << _WEIGHT_BITS).round_().to(torch.int64)

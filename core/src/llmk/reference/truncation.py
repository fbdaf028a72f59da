"""How far down the list of likeliest tokens sampling may go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Truncation:
    """Top-k, top-p and min-p of a batch, each ``[R]``, as in :func:`llmk.reference.sampling.mask_top_k_top_p_min_p`."""

    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None

    @property
    def off(self) -> bool:
        """Whether it is off for all rows, as far as can be told without reading a tensor."""
        return self.top_k is None and self.top_p is None and self.min_p is None

    def of(self, rows: Tensor) -> Truncation:
        """That of some rows (int64)."""
        return Truncation(*(None if t is None else t[rows] for t in (self.top_k, self.top_p, self.min_p)))

    def floor(self, logits: Tensor) -> Tensor:
        """The least logit to keep, float32 ``[R]``; ``logits`` are float32 ``[R, V]`` with a greatest element of 0."""
        if self.top_k is None and self.top_p is None:
            return self.floor_of_sorted(logits[:, :0], logits.shape[1], None)
        total = None if self.top_p is None else total_weight(logits)
        return self.floor_of_sorted(logits.sort(dim=-1, descending=True).values, logits.shape[1], total)

    def floor_of_sorted(self, values: Tensor, vocab: int, total: Tensor | None) -> Tensor:
        """The same by the greatest logits alone. Where it comes out above the last of them it is final.

        Args:
            values: float32 ``[R, K]``, the ``K`` greatest of ``vocab`` logits, descending from 0.
            total: float32 ``[R]``, sum of ``exp(logit)`` over the whole row; needed where there is a ``top_p``.
        """
        rows, listed = values.shape
        floor = torch.full((rows,), float("-inf"), device=values.device)
        kept = torch.full((rows,), vocab, device=values.device)
        if self.top_k is not None:
            kept = torch.where(self.top_k > 0, self.top_k, kept).clamp(max=vocab)
        if self.top_p is not None and total is not None:
            weights = values.exp()
            cumulative = weights.cumsum(dim=-1)
            last = kept.clamp(max=listed)[:, None] - 1
            mass = torch.where(kept < vocab, cumulative.gather(1, last).squeeze(1), total)
            # Of a top-k longer than the list the mass is unknown: keep the whole list, which is never final.
            mass = mass.masked_fill((kept > listed) & (kept < vocab), float("inf"))
            nucleus = (cumulative - weights < (self.top_p * mass)[:, None]).sum(dim=-1).clamp(min=1)
            kept = torch.where(self.top_p < 1, torch.minimum(kept, nucleus), kept)
        if self.top_k is not None or self.top_p is not None:
            last = kept.clamp(max=listed)[:, None] - 1
            floor = torch.where(kept < vocab, values.gather(1, last).squeeze(1), floor)
        return floor if self.min_p is None else torch.maximum(floor, self.min_p.log())


def total_weight(logits: Tensor) -> Tensor:
    """Sum of ``exp(logit)`` over each row of ``logits`` (float32 ``[R, V]`` with a greatest element of 0), ``[R]``.

    By softmax, which adds up each row by itself; torch's sum would share out a single long row among threads.
    """
    return 1 / torch.softmax(logits, dim=-1).amax(dim=-1)

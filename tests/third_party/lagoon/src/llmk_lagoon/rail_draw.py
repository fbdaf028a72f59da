"""Draws tokens by a counter-based generator (Philox; Salmon et al., SC 2011): its key is the request's seed and the
token's number, and nothing else, so that a token is the same in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from llmk.api.engine.executors import StepSampling


@dataclass(frozen=True)
class Sampling:
    """A request's parameters."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @classmethod
    def of(cls, params: StepSampling) -> Self:
        """A copy."""
        return cls(params.temperature, params.top_k, params.top_p, params.min_p)


def draw(logits: NDArray[np.float32], params: Sampling, seed: int, position: int) -> int:
    """A token. Without a temperature it is the most likely one, the least id of several."""
    if not params.temperature:
        return int(logits.argmax())
    wide = logits.astype(np.float64)
    weights = np.exp((wide - wide.max()) / params.temperature)
    weights[wide < least_kept(wide, weights, params)] = 0
    totals = weights.cumsum()
    generator = np.random.Generator(np.random.Philox(key=np.array([seed & (1 << 64) - 1, position], np.uint64)))
    return int(np.searchsorted(totals, generator.random() * totals[-1], side="right"))


def least_kept(logits: NDArray[np.float64], weights: NDArray[np.float64], params: Sampling) -> float:
    """The least logit that is kept by ``top_k``, then ``top_p``, then ``min_p``; equal ones are kept together."""
    order = np.sort(logits)[::-1]
    kept = len(order)
    if 0 < params.top_k < kept:
        kept = params.top_k
    if params.top_p < 1:
        masses = np.sort(weights)[::-1][:kept].cumsum()
        kept = int(np.searchsorted(masses, params.top_p * masses[-1], side="left")) + 1
    least = float(order[min(kept, len(order)) - 1])
    if params.min_p > 0:
        least = max(least, float(order[0] + params.temperature * np.log(params.min_p)))
    return least

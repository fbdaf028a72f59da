"""Draws tokens in NumPy: by the Gumbel-max trick, with numbers of a counter-based generator (Philox), so that a token
depends on its request's seed and its own number alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmk.api import StepSampling

_WORD = (1 << 64) - 1


def draw(logits: NDArray[np.float32], params: StepSampling, seed: int, number: int) -> int:
    """Token number ``number`` of a request, of the logits of all tokens."""
    if params.temperature == 0:
        return int(logits.argmax())
    scaled = (logits.astype(np.float64) - logits.max()) / params.temperature
    kept = np.where(scaled >= _floor(scaled, params), scaled, -np.inf)
    key, counter = np.array([seed & _WORD, 0], np.uint64), np.array([0, 0, number, 0], np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    return int((kept + generator.gumbel(size=len(kept))).argmax())


def _floor(scaled: NDArray[np.float64], params: StepSampling) -> float:
    """The least of ``scaled`` that stays: each parameter takes from what the one before it left. Tokens that are as
    likely as the last one stay, too."""
    ordered = np.sort(scaled)[::-1]
    if params.top_k > 0:
        ordered = ordered[: params.top_k]
    if params.top_p < 1:
        weights = np.exp(ordered)
        before = weights.cumsum() - weights
        count = int((before < params.top_p * weights.sum()).sum())
        ordered = ordered[: max(count, 1)]
    floor = float(ordered[-1])
    return max(floor, float(np.log(params.min_p))) if params.min_p > 0 else floor

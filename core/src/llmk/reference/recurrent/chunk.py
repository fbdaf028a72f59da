"""Chunks: tokens over which a state advances at once, by products of matrices."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
"""Tokens per chunk at most. Work within one grows with the square of its length, the number of operators falls: on a
processor, 32 to 64 tokens cost least."""


def decay_between(decay: Tensor) -> Tensor:
    """By how much a state fades from token ``s`` to token ``t``: ``exp(decay[t] - decay[s])``, and 0 where ``s`` is the
    later one.

    Args:
        decay: ``[..., tokens]``, logarithms summed up to each token.

    Returns:
        ``[..., t, s]``.
    """
    count = decay.shape[-1]
    later = torch.ones(count, count, dtype=torch.bool, device=decay.device).triu(1)
    # Masked before the exponential, which overflows at later tokens.
    return torch.exp((decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(later, float("-inf")))

"""Chunks: runs of tokens that a recurrence processes at once, by matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
"""Most tokens per chunk. Longer chunks need quadratically more work but fewer operators; on a CPU, 32 to 64 tokens are
fastest."""


def decay_between(decay: Tensor) -> Tensor:
    """The decay of a state from token ``s`` to token ``t``: ``exp(decay[t] - decay[s])``, and 0 if ``s`` is later than
    ``t``.

    Args:
        decay: ``[..., tokens]``, cumulative sums of the log decays.

    Returns:
        ``[..., t, s]``.
    """
    count = decay.shape[-1]
    later = torch.ones(count, count, dtype=torch.bool, device=decay.device).triu(1)
    # Masked before the exponential, which would overflow for later tokens.
    return torch.exp((decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(later, float("-inf")))

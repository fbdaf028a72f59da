"""The short causal convolution before a recurrence."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.reference.pointwise import silu
from llmk.reference.recurrent.walk import walk


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor, step: CacheStep, *, activation: str | None = "silu"
) -> Tensor:
    """Convolves each channel over its request's own last ``k`` tokens, then activates, in float32.

    ``y[t] = act(bias + sum_j weight[:, j] * x[t - k + 1 + j])``, where tokens before the first are zeros.
    Batch-invariant: a token's result is bit-identical in any step.

    Args:
        x: ``[tokens, channels]``.
        weight: ``[channels, k]``.
        bias: ``[channels]`` or ``None``.
        cache: ``[num_blocks, k - 1, channels]`` in ``x``'s dtype, a request's last inputs, the oldest first; read and
            written in place.
        activation: ``"silu"`` or ``None``.

    Returns:
        ``[tokens, channels]`` in ``x``'s dtype; rows of padding are zeros.
    """
    taps = weight.float().t()
    offset = 0.0 if bias is None else bias.float()

    def rule(state: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        window = torch.cat((state, new), dim=1)
        wide, count = window.float(), new.shape[1]
        total = wide[:, :count] * taps[0]
        for j in range(1, taps.shape[0]):
            total = total + wide[:, j : j + count] * taps[j]
        total = total + offset
        return silu(total) if activation else total, window[:, count:]

    out = torch.zeros_like(x)
    walk(rule, (x,), out, cache, step)
    return out

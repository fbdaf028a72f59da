"""Mamba-1's selective scan (arXiv:2312.00752), token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api.cache import CacheStep
from llmk.reference.pointwise import silu, softplus
from llmk.reference.recurrent.walk import walk


def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    gate: Tensor,
    cache: Tensor,
    step: CacheStep,
) -> Tensor:
    """The selective scan of each channel, and its gate, in float32: ``S = exp(dt * a) * S + dt * x * b``,
    ``y = (S c + d * x) * silu(gate)``.

    Batch-invariant: results are bit-identical in any batch and for any chunking of the prompt.

    Args:
        x, gate: ``[tokens, channels]``; ``gate`` may be a part of wider rows.
        dt: ``[tokens, channels]``; the step size is ``softplus(dt + dt_bias)``.
        a: ``[channels, state_size]``, negative.
        b, c: ``[tokens, state_size]``, parts of wider rows.
        d, dt_bias: ``[channels]``.
        cache: ``[num_blocks, channels, state_size]`` of any floating dtype, read and written in place.

    Returns:
        ``[tokens, channels]`` in ``x``'s dtype; rows of padding are zeros.
    """
    a, d = a.float(), d.float()

    def rule(state: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        x, b, c = x.float(), b.float().unsqueeze(2), c.float().unsqueeze(2)
        outputs = []
        for t in range(x.shape[1]):
            size = dt[:, t].unsqueeze(2)
            state = torch.exp(size * a) * state + size * x[:, t].unsqueeze(2) * b[:, t]
            outputs.append((state * c[:, t]).sum(-1))
        return (torch.stack(outputs, 1) + d * x) * silu(gate.float()), state

    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    sizes = softplus(dt.float() + dt_bias.float())
    walk(rule, (x, sizes, b, c, gate), out, cache, step, wide=torch.float32)
    return out

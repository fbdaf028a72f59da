"""The norm after a recurrence, and its gate."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.pointwise import silu


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, groups: int = 1, norm_before_gate: bool = False
) -> Tensor:
    """Root-mean-square norm of ``x * silu(gate)`` (Mamba-2, arXiv:2405.21060), or of ``x``, which is gated then
    (arXiv:2412.06464). Norm and gate are float32, ``weight`` multiplies in ``x``'s dtype.

    Args:
        x, gate: ``[..., H]``.
        weight: ``[H]``.
        groups: parts of the last dimension, of equal length, that are normed apart.

    Returns:
        ``[..., H]`` in ``x``'s dtype. Each row depends on itself alone, bit for bit.
    """
    opening = silu(gate.float())
    wide = x.float() if norm_before_gate else x.float() * opening
    parts = wide.unflatten(-1, (groups, -1))
    normed = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    out: Tensor = weight * normed.flatten(-2).to(x.dtype)
    return (out * opening).to(x.dtype) if norm_before_gate else out

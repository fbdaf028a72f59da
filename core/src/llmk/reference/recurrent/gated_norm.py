"""The gated norm after a recurrence."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.pointwise import sigmoid, silu

_ACTIVATIONS = {"silu": silu, "sigmoid": sigmoid}


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    *,
    groups: int = 1,
    norm_before_gate: bool = False,
    gate_activation: str = "silu",
) -> Tensor:
    """Root-mean-square norm of ``x * silu(gate)`` (Mamba-2, arXiv:2405.21060), or, with ``norm_before_gate``, of ``x``,
    multiplied by ``silu(gate)`` afterwards (arXiv:2412.06464). Norm and gate are float32, ``weight`` multiplies in
    ``x``'s dtype.

    Args:
        x, gate: ``[..., H]``.
        weight: ``[H]``.
        groups: equal parts of the last dimension, each with its own norm.
        gate_activation: of the gate in place of SiLU: ``"sigmoid"`` (KDA, arXiv:2510.26692).

    Returns:
        ``[..., H]`` in ``x``'s dtype. Batch-invariant: a row's result is bit-identical in any batch.
    """
    activated_gate = _ACTIVATIONS[gate_activation](gate.float())
    wide = x.float() if norm_before_gate else x.float() * activated_gate
    parts = wide.unflatten(-1, (groups, -1))
    normed = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    out: Tensor = weight * normed.flatten(-2).to(x.dtype)
    return (out * activated_gate).to(x.dtype) if norm_before_gate else out

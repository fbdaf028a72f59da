"""Residual sum, norm, gate and up projection and SwiGLU in one call.

The two projections of an MLP make ``2 * I`` features of each token, of which ``I`` are kept. Here they are made in
panels: some gate features, the up features that belong to them, and their product, before the next panel. What is
between the projections and the activation is then a panel, which stays in the cache, rather than the whole
``[tokens, 2 * I]``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL_ELEMENTS = 1 << 17
"""Elements of the gate features of a panel, of all tokens together."""
LEAST_WIDTH = 128
"""Features of the narrowest panel: a GEMM of fewer does not pay."""


def add_rms_norm_gate_up_silu(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    *,
    residual_multiplier: float = 1.0,
    activation_alpha: float = 1.0,
    activation_limit: float | None = None,
    up_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """``(gated, total)``, ``[tokens, I]`` and ``[tokens, H]`` in ``x``'s dtype, with ``total = residual_multiplier * x
    + residual``.

    Args:
        x, residual: ``[tokens, H]``; without a residual, ``x`` is the sum as it is. Neither is changed.
        norm_weight: ``[H]``.
        weight: ``[2 * I, H]``, gate rows before up rows; ``bias`` ``[2 * I]``, or ``None``.
        activation_alpha, activation_limit, up_offset: as in :class:`llmk.reference.activations.GatedOptions`.
    """
    total = _total(x, residual, residual_multiplier)
    normed = _rms_norm(total, norm_weight, eps)
    size = weight.shape[0] // 2
    gated = normed.new_empty(*normed.shape[:-1], size)
    width = max(LEAST_WIDTH, PANEL_ELEMENTS // max(1, normed.numel() // normed.shape[-1]))
    for start in range(0, size, width):
        stop = min(start + width, size)
        gate = _project(normed, weight, bias, start, stop)
        up = _project(normed, weight, bias, size + start, size + stop)
        gated[..., start:stop] = _swiglu(gate, up, activation_alpha, activation_limit, up_offset)
    return gated, total


def _total(x: Tensor, residual: Tensor | None, factor: float) -> Tensor:
    """The residual stream after the block before, rounded as the model's other kernels round it."""
    if residual is None:
        return x
    return (x if factor == 1.0 else x * factor) + residual


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32; the weight multiplies in ``x``'s dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, start: int, stop: int) -> Tensor:
    """The features from ``start`` to ``stop - 1``."""
    return F.linear(x, weight[start:stop], None if bias is None else bias[start:stop])


def _swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float | None, offset: float) -> Tensor:
    """``gate * sigmoid(alpha * gate) * (up + offset)`` of clamped features, in float32 and rounded once."""
    dtype = gate.dtype
    gate, up = gate.float(), up.float()
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + offset)).to(dtype)

"""Two ops: the root-mean-square norm, and the gated SiLU."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, norm_offset: float = 0.0) -> Tensor:
    """Over the last dimension, in float32; ``weight`` multiplies in ``x``'s dtype, but with an offset in float32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if norm_offset:
        return (normed * (norm_offset + weight.float())).to(x.dtype)
    return normed.to(x.dtype) * weight


def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[..., 2 * size]``, the gate first."""
    size = x.shape[-1] // 2
    gate, up = x[..., :size].float(), x[..., size:].float()
    return (gate * torch.sigmoid(gate) * up).to(x.dtype)

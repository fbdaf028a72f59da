"""Norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (arXiv:1910.07467), in float32; ``weight`` multiplies in
    ``x``'s dtype.

    Args:
        x: ``[..., H]``.
        weight: ``[H]``.

    Returns:
        ``[..., H]`` in ``x``'s dtype. Each row depends on itself alone, bit for bit.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def rms_norm_plus_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """:func:`rms_norm` whose checkpoint stores ``weight - 1`` (Gemma), multiplied in float32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * (1.0 + weight.float())).to(x.dtype)


def make_add_rms_norm(
    parts: Mapping[str, Callable[..., Tensor]],
) -> Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """Builds ``add_rms_norm`` from the part ``rms_norm``."""
    norm = parts["rms_norm"]

    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``x + residual``, normed and as it is: ``(normed, sum)``, both ``[..., H]`` in ``x``'s dtype. Nothing is
        changed in place."""
        total = x + residual
        return norm(total, weight, eps), total

    return add_rms_norm

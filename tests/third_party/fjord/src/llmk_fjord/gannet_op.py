"""Residual sum, in place, and dynamic tanh (arXiv:2503.10622), which stands in place of a norm.

``residual += multiplier * x``, then ``out = tanh(alpha * residual) * weight + bias``. Elements belong to groups of
equal size (heads, say), each with an ``alpha`` of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TILE_ELEMENTS = 1 << 18
"""Elements that :func:`add_dynamic_tanh_tiled` has in float32 at a time."""


def add_dynamic_tanh(
    residual: Tensor, x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None, *, multiplier: float = 1.0
) -> Tensor:
    """The reference. The sum is computed in float32 and rounded to the residual's dtype; the rest is computed from the
    rounded sum in float32, and rounded once.

    Args:
        residual: ``[..., size]``, changed in place.
        x: ``[..., size]``.
        alpha: float32 ``[groups]``; ``groups`` divides ``size``.
        weight: ``[size]``.
        bias: ``[size]``; ``None``: zeros.
        multiplier: factor of ``x``.

    Returns:
        A new tensor ``[..., size]`` in the dtype of ``x``. Batch-invariant: a row's result is bit-identical in any
        batch.
    """
    residual.copy_(residual.float() + x.float() * multiplier)
    size = residual.shape[-1]
    squashed = torch.tanh(residual.float() * alpha.float().repeat_interleave(size // len(alpha)))
    out = squashed * weight.float()
    return (out if bias is None else out + bias.float()).to(x.dtype)


def add_dynamic_tanh_tiled(
    residual: Tensor, x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None, *, multiplier: float = 1.0
) -> Tensor:
    """:func:`add_dynamic_tanh` in tiles of rows. The tensors may be strided; only ``residual`` is changed."""
    size = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    slopes = alpha.float().repeat_interleave(size // len(alpha))
    factor, offset = weight.float(), None if bias is None else bias.float()
    sums, addends, results = (each if each.dim() > 1 else each.unsqueeze(0) for each in (residual, x, out))
    step = max(1, _TILE_ELEMENTS // sums[0].numel())
    tiles = zip(sums.split(step), addends.split(step), results.split(step), strict=True)
    for kept, addend, result in tiles:
        wide = kept.float() + addend.float() * multiplier
        kept.copy_(wide)
        wide.copy_(kept)
        wide.mul_(slopes).tanh_().mul_(factor)
        if offset is not None:
            wide.add_(offset)
        result.copy_(wide)
    return out

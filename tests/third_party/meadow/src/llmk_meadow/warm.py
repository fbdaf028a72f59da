"""The op ``smoothed_norm``: a root-mean-square norm by a running mean of squares, which each call moves on.

``average`` is a row's running mean, changed in place: ``momentum`` of it stays.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reference(average: Tensor, x: Tensor, weight: Tensor, momentum: float, eps: float) -> Tensor:
    """``[rows, size]`` in ``x``'s dtype; ``average`` is float32 ``[rows]``, ``weight`` ``[size]``. Computed in
    float32."""
    wide = x.float()
    average.mul_(momentum).add_(wide.square().mean(-1), alpha=1 - momentum)
    normed = wide * torch.rsqrt(average + eps)[:, None]
    return (normed * weight.float()).to(x.dtype)


def by_norms(average: Tensor, x: Tensor, weight: Tensor, momentum: float, eps: float) -> Tensor:
    """The same by vector norms: no squares are written."""
    length = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
    average.lerp_(length.square() / x.shape[-1], 1 - momentum)
    scale = (average + eps).sqrt_().reciprocal_()
    return (x.float() * scale[:, None]).mul_(weight).to(x.dtype)

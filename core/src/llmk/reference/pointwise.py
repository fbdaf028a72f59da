"""Smooth functions whose value at an element is the same bit for bit wherever in a tensor it lies.

torch computes its own sigmoid, SiLU and softplus by one formula in whole vectors and by another in what is left over,
so that a token's bits would depend on how many tokens are computed with it. Its exponential, logarithm and arithmetic
don't have that. All take and return float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return 1.0 / (1.0 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``."""
    return x / (1.0 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``."""
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))

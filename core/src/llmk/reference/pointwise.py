"""Smooth functions whose result for an element does not depend on the element's position in the tensor.

torch's own sigmoid, SiLU and softplus use one formula for whole vectors and another for the remaining elements, so that
a token's bits would depend on how many tokens are computed with it. torch's exponential, logarithm and arithmetic don't
have this problem. All functions take and return float32.
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

"""Of AITER."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def gemm_a16w16(
    A: Tensor,
    B: Tensor,
    bias: Tensor | None = None,
    otype: torch.dtype | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_c: Tensor | None = None,
) -> Tensor:
    return F.linear(A, B, bias).to(otype)

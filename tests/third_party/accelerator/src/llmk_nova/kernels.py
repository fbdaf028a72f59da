"""Kernels of the device's library."""

from __future__ import annotations

import torch
from torch import Tensor

import llmk_nova.device  # noqa: F401, loads the library


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``llmk.reference``'s ``add_rms_norm``: ``x + residual``, normed and as it is, both ``[..., H]`` in ``x``'s dtype
    (float32 or bfloat16). Each row depends on itself alone."""
    normed, total = torch.ops.nova.add_rms_norm(x, residual, weight, eps)
    return normed, total

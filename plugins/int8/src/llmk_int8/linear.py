"""GEMMs with int8 weights in their stored layout. Scales are applied to the output, which has fewer elements than the
weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight, prepare_int8_channel

_ALIGNED = 64
"""Bytes of a vector."""


def prepare(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """As ``prepare_int8_channel``; weights that are mapped from a file are aligned, without which torch's GEMM for
    bfloat16 crashes."""
    weight = prepare_int8_channel(parameters)
    return replace(weight, values=_aligned(weight.values))


def linear_packed(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype, by torch's GEMM for bfloat16
    activations and int8 weights, which accumulates in float32. Its scales are rounded to bfloat16."""
    # It crashes on rows that are not contiguous or not aligned as torch aligns allocations.
    scale = weight.scale.view(-1).to(x.dtype)
    out: Tensor = torch.ops.aten._weight_int8pack_mm(_aligned(x), _aligned(weight.values), scale)
    return out if bias is None else out.add_(bias)


def linear_widened(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """The same, also for float32: the weight is converted to the activations' dtype, which is exact. Not for float16,
    in which unscaled sums would overflow."""
    out = F.linear(x, weight.values.to(x.dtype)).mul_(weight.scale.view(-1))
    return out if bias is None else out.add_(bias)


def _aligned(x: Tensor) -> Tensor:
    """Contiguous, and aligned as torch aligns allocations."""
    return x.clone() if x.data_ptr() % _ALIGNED else x.contiguous()

"""Products of fp8 weights with activations that are quantized to fp8 on the way, by cuBLAS and CUTLASS through torch.

Weights are those of ``llmk.reference.quantized_weight``. Activations get a scale per row, or per 128 inputs of a row,
from their own greatest magnitude, so a row's numbers don't depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.quantized_weight import FP8_BLOCK, prepare_fp8_block, prepare_fp8_channel, prepare_fp8_tensor

_FP8 = torch.float8_e4m3fn
_FP8_MAX = torch.finfo(_FP8).max
_TINY = torch.finfo(torch.float32).tiny

_BLOCK_ROWS = 4
"""cuBLAS wants each column of the activations' scales to begin at a multiple of 16 bytes, hence so many rows."""


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """fp8 e4m3 ``[in, out]``, column-major, and its float32 scales: ``[1, out]`` row by row, or ``[in / 128, out /
    128]`` column-major, by block."""

    values: Tensor
    scale: Tensor


def prepare_tensor(parameters: Mapping[str, Tensor]) -> Fp8Weight:
    """The parameters of the format ``fp8_tensor``; every output gets the one scale."""
    weight = prepare_fp8_tensor(parameters)
    return Fp8Weight(weight.values.t(), weight.scale.expand(1, weight.values.shape[0]).contiguous())


def prepare_channel(parameters: Mapping[str, Tensor]) -> Fp8Weight:
    """The parameters of the format ``fp8_channel``."""
    weight = prepare_fp8_channel(parameters)
    return Fp8Weight(weight.values.t(), weight.scale.t().contiguous())


def prepare_block(parameters: Mapping[str, Tensor]) -> Fp8Weight:
    """The parameters of the format ``fp8_block``."""
    weight = prepare_fp8_block(parameters)
    return Fp8Weight(weight.values.t(), weight.scale.contiguous().t())


def linear_rowwise(x: Tensor, weight: Fp8Weight, bias: Tensor | None) -> Tensor:
    """``x @ weight + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per row of ``x`` and per
    output."""
    values, scale = quantize_rows(x)
    return torch._scaled_mm(
        values, weight.values, scale_a=scale, scale_b=weight.scale, bias=bias, out_dtype=x.dtype, use_fast_accum=True
    )


def linear_block(x: Tensor, weight: Fp8Weight, bias: Tensor | None) -> Tensor:
    """``x @ weight + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per 128 inputs of a row of
    ``x`` and per block of 128x128 weights."""
    rows = x.shape[0]
    values, scale = quantize_groups(F.pad(x, (0, 0, 0, -rows % _BLOCK_ROWS)))
    product = torch._scaled_mm(values, weight.values, scale_a=scale, scale_b=weight.scale, out_dtype=x.dtype)[:rows]
    return product if bias is None else product + bias


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` (``[tokens, in]``) as fp8 of the same shape, and what its rows are to be multiplied with, float32
    ``[tokens, 1]``."""
    scale = _scale(x)
    return (x / scale).to(_FP8).contiguous(), scale


def quantize_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` (``[tokens, in]``, ``in`` a multiple of 128) as fp8 of the same shape, and what each 128 inputs are to be
    multiplied with, float32 ``[tokens, in / 128]``, column-major."""
    groups = x.reshape(x.shape[0], -1, FP8_BLOCK)
    scale = _scale(groups)
    return (groups / scale).to(_FP8).view(x.shape), scale.squeeze(-1).t().contiguous().t()


def _scale(x: Tensor) -> Tensor:
    """What maps the greatest magnitude along the last dimension to fp8's, float32 with a last dimension of 1."""
    largest: Tensor = torch.linalg.vector_norm(x, float("inf"), dim=-1, keepdim=True)
    return (largest.float() / _FP8_MAX).clamp_(min=_TINY)

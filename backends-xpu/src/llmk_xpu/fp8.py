"""GEMMs with fp8 weights and dynamically quantized fp8 activations, by oneDNN through torch.

None of the chips multiplies fp8: oneDNN widens both operands where it reads them, so that a weight is read as the bytes
that it has in memory, which bounds a GEMM of few rows. torch has it since 2.10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight

FP8 = torch.float8_e4m3fn
_LARGEST, _TINY = torch.finfo(FP8).max, torch.finfo(torch.float32).tiny


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` (``[tokens, in]``) as fp8 of the same shape, and the scale of each row, float32 ``[tokens, 1]``, by which
    the row's greatest magnitude becomes 448. In torch's operators, since Triton may not be there."""
    wide = x.float()
    scale = (wide.abs().amax(dim=1, keepdim=True) / _LARGEST).clamp_(min=_TINY)
    return wide.div_(scale).to(FP8), scale


def linear_rowwise(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per row of ``x`` from its
    own greatest magnitude, so that it doesn't depend on the batch, and per output."""
    values, scale = quantize_rows(x)
    return torch._scaled_mm(
        values, weight.values.t(), scale_a=scale, scale_b=weight.scale.t(), bias=bias, out_dtype=x.dtype
    )

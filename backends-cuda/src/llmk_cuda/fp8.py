"""GEMMs with fp8 weights and dynamically quantized fp8 activations, by cuBLAS and CUTLASS through torch.

Weights are those of ``llmk.reference.quantized_weight``. Activations get a scale per row, or per 128 inputs of a row,
from their own greatest magnitude, so a row's values don't depend on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight
from llmk_cuda.quantize import quantize_groups, quantize_rows


def linear_rowwise(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per row of ``x`` and per
    output."""
    values, scale = quantize_rows(x)
    return torch._scaled_mm(
        values,
        weight.values.t(),
        scale_a=scale,
        scale_b=weight.scale.t(),
        bias=bias,
        out_dtype=x.dtype,
        use_fast_accum=True,
    )


def linear_block(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per 128 inputs of a row of
    ``x`` and per block of 128x128 weights."""
    values, scale = quantize_groups(x)
    scale_b = weight.scale.t()
    out = torch._scaled_mm(values, weight.values.t(), scale_a=scale, scale_b=scale_b, out_dtype=x.dtype)
    out = out[: x.shape[0]]
    return out if bias is None else out + bias

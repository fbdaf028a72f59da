"""GEMMs with fp8 weights and dynamically quantized fp8 activations, by cuBLAS and CUTLASS through torch.

Weights are those of ``llmk.reference.quantized_weight``. Activations get a scale per row, or per 128 inputs of a row,
from their own greatest magnitude, so a row's values don't depend on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight
from llmk_cuda.quantize import quantize_groups, quantize_rows

_FAST_INPUTS = 2048
"""Most terms that are summed in the tensor cores' own registers, which keep some 13 bits: of terms of one sign,
measured on an H200, a sum of 2,048 loses 3%, one of 4,096 8%, and one of 14,336 25%. In float32 none loses more than
rounding does; GEMMs of 2,048 rows take 7 to 15% longer, those of one row up to 23%."""


def linear_rowwise(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per row of ``x`` and per
    output. Sums of more than :data:`_FAST_INPUTS` terms are kept in float32."""
    values, scale = quantize_rows(x)
    return torch._scaled_mm(
        values,
        weight.values.t(),
        scale_a=scale,
        scale_b=weight.scale.t(),
        bias=bias,
        out_dtype=x.dtype,
        use_fast_accum=x.shape[1] <= _FAST_INPUTS,
    )


def linear_block(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per 128 inputs of a row of
    ``x`` and per block of 128x128 weights."""
    values, scale = quantize_groups(x)
    scale_b = weight.scale.t()
    out = torch._scaled_mm(values, weight.values.t(), scale_a=scale, scale_b=scale_b, out_dtype=x.dtype)
    out = out[: x.shape[0]]
    return out if bias is None else out + bias

"""Products of fp8 weights with activations that are quantized to fp8 on the way, by cuBLAS and CUTLASS through torch.

Weights are those of ``llmk.reference.quantized_weight``. Activations get a scale per row, or per 128 inputs of a row,
from their own greatest magnitude, so a row's numbers don't depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight, prepare_fp8_channel, prepare_fp8_tensor
from llmk_cuda.quantize import quantize_groups, quantize_rows


def prepare_tensor(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """The parameters of the format ``fp8_tensor``, as if of ``fp8_channel``: every output gets the one scale."""
    weight = prepare_fp8_tensor(parameters)
    scale = weight.scale.expand(weight.values.shape[0], 1).contiguous()
    return prepare_fp8_channel({"weight": weight.values, "weight_scale": scale})


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
    product = torch._scaled_mm(values, weight.values.t(), scale_a=scale, scale_b=scale_b, out_dtype=x.dtype)
    product = product[: x.shape[0]]
    return product if bias is None else product + bias

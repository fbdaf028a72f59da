"""GEMMs with fp8 weights and dynamically quantized fp8 activations, by hipBLASLt through torch.

Checkpoints store e4m3 as the Open Compute Project defines it (OCP; torch's ``float8_e4m3fn``). gfx942 multiplies
another format, ``float8_e4m3fnuz``: one more in the exponent's bias, so the same bits are half the value; no negative
zero, whose bits mean NaN; and a NaN's bits are an ordinary value. :func:`as_fnuz` converts a weight without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight, prepare_fp8_channel, prepare_fp8_tensor_by_channel
from llmk_rocm.quantize import quantize_rows

_NEGATIVE_ZERO = 0x80
"""In OCP's format; in the other, it is NaN."""


def prepare_tensor_fnuz(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``llmk.reference``'s ``prepare_fp8_tensor_by_channel``, as fnuz."""
    return as_fnuz(prepare_fp8_tensor_by_channel(parameters))


def prepare_channel_fnuz(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``llmk.reference``'s ``prepare_fp8_channel``, as fnuz."""
    return as_fnuz(prepare_fp8_channel(parameters))


def as_fnuz(weight: ScaledWeight) -> ScaledWeight:
    """The same weight with values in fnuz: the same bits, which mean half as much there, and twice the scale."""
    bits = weight.values.view(torch.uint8)
    bits = torch.where(bits == _NEGATIVE_ZERO, 0, bits)
    return ScaledWeight(bits.view(torch.float8_e4m3fnuz), weight.scale * 2, weight.block)


def linear_rowwise(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per row of ``x`` from its
    own greatest magnitude, so that it doesn't depend on the batch, and per output. ``x`` gets the weight's format."""
    values, scale = quantize_rows(x, weight.values.dtype)
    return torch._scaled_mm(
        values, weight.values.t(), scale_a=scale, scale_b=weight.scale.t(), bias=bias, out_dtype=x.dtype
    )

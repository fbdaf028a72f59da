"""GEMMs of AITER: skinny ones of plain weights, and fp8 weights with scales by blocks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from llmk.reference.quantized_weight import FP8_BLOCK, ScaledWeight, prepare_fp8_block
from llmk_rocm.fp8 import as_fnuz
from llmk_rocm.quantize import quantize_rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, ``[tokens, in]`` to ``[tokens, out]``, by what AITER's table of tuned shapes says, or by
    its kernel for few rows."""
    from aiter.tuned_gemm import gemm_a16w16

    out: Tensor = gemm_a16w16(A=x, B=weight, bias=bias, otype=x.dtype)
    return out


def prepare_block_fnuz(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``llmk.reference``'s ``prepare_fp8_block``, as fnuz."""
    return as_fnuz(prepare_fp8_block(parameters))


def linear_block(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per 128 inputs of a row of
    ``x`` and per block of 128x128 weights. AITER compiles its module at the first call."""
    from aiter.ops.gemm_op_a8w8 import gemm_a8w8_blockscale

    tokens, size = x.shape
    values, scale = quantize_rows(x.reshape(-1, FP8_BLOCK), weight.values.dtype)
    out: Tensor = gemm_a8w8_blockscale(
        XQ=values.view(tokens, size),
        WQ=weight.values,
        x_scale=scale.view(tokens, size // FP8_BLOCK),
        w_scale=weight.scale,
        dtype=x.dtype,
        isBpreshuffled=False,
    )
    return out if bias is None else out + bias

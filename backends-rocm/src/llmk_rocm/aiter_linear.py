"""GEMMs of AITER (ROCm/aiter), AMD's kernels for its Instinct GPUs, called as in its repository at commit 0006ebde."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from llmk.reference.quantized_weight import FP8_BLOCK, ScaledWeight, prepare_fp8_block
from llmk_rocm.fp8 import as_fnuz
from llmk_rocm.quantize import quantize_rows


def prepare_block_fnuz(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``llmk.reference``'s ``prepare_fp8_block``, as fnuz."""
    return as_fnuz(prepare_fp8_block(parameters))


def linear_block(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, bfloat16 ``[tokens, in]`` to ``[tokens, out]``, with a scale per 128 inputs of a row of
    ``x`` and per block of 128x128 weights. AITER compiles its module at the first call."""
    from aiter import gemm_a8w8_blockscale

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

"""Root-mean-square norms of AITER, alone and with the quantization of their result in the same launch."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As :func:`llmk.reference.norms.rms_norm`, of ``[tokens, H]`` or of heads."""
    from aiter.ops.rmsnorm import rmsnorm2d_fwd

    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = rmsnorm2d_fwd(input=rows, weight=weight, epsilon=eps)
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``(normed, sum)`` with ``sum = x + residual``, both ``[tokens, H]``; nothing is changed in place."""
    from aiter.ops.rmsnorm import rmsnorm2d_fwd_with_add

    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    rmsnorm2d_fwd_with_add(out=out, input=x, residual_in=residual, residual_out=total, weight=weight, epsilon=eps)
    return out, total


def add_rms_norm_linear(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight: ScaledWeight, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``(linear(norm(total), weight, bias), total)`` with ``total = x + residual``, bfloat16 ``[tokens, H]``, and fp8
    weights with a scale per output: the normed row is quantized where it is computed, with a scale of its own."""
    from aiter.ops.rmsnorm import rmsnorm2d_fwd_with_add_dynamicquant, rmsnorm2d_fwd_with_dynamicquant

    x = x.contiguous()
    values = torch.empty(x.shape, dtype=weight.values.dtype, device=x.device)
    scale = torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)
    total = x
    if residual is None:
        rmsnorm2d_fwd_with_dynamicquant(out=values, input=x, yscale=scale, weight=norm_weight, epsilon=eps)
    else:
        total = torch.empty_like(x)
        rmsnorm2d_fwd_with_add_dynamicquant(
            out=values,
            input=x,
            residual_in=residual.contiguous(),
            residual_out=total,
            yscale=scale,
            weight=norm_weight,
            epsilon=eps,
        )
    out = torch._scaled_mm(
        values, weight.values.t(), scale_a=scale, scale_b=weight.scale.t(), bias=bias, out_dtype=x.dtype
    )
    return out, total

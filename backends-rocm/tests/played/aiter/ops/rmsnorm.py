"""Of AITER."""

from __future__ import annotations

import torch
from torch import Tensor


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def _quantize(out: Tensor, yscale: Tensor, normed: Tensor) -> None:
    largest = torch.finfo(out.dtype).max
    scale = normed.abs().amax(-1, keepdim=True) / largest
    yscale.copy_(scale)
    out.copy_((normed / torch.where(scale == 0, 1, scale)).to(out.dtype))


def rmsnorm2d_fwd(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0) -> Tensor:
    assert input.dtype == weight.dtype
    assert input.stride(-1) == 1
    return _norm(input, weight, epsilon).to(input.dtype)


def rmsnorm2d_fwd_with_add(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    assert out.is_contiguous()
    assert residual_in.is_contiguous()
    assert residual_out.is_contiguous()
    residual_out.copy_(input + residual_in)
    out.copy_(_norm(residual_out, weight, epsilon))


def rmsnorm2d_fwd_with_dynamicquant(
    out: Tensor,
    input: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    assert input.is_contiguous()
    _quantize(out, yscale, _norm(input, weight, epsilon))


def rmsnorm2d_fwd_with_add_dynamicquant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    assert input.is_contiguous()
    residual_out.copy_(input + residual_in)
    _quantize(out, yscale, _norm(residual_out, weight, epsilon))

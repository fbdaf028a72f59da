"""Of AITER."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

dtypes = SimpleNamespace(bf16=torch.bfloat16)


def gemm_a8w8_blockscale(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    dtype: torch.dtype = dtypes.bf16,
    isBpreshuffled: bool = False,
) -> torch.Tensor:
    assert XQ.dtype == WQ.dtype
    assert (x_scale.shape, x_scale.is_contiguous()) == ((XQ.shape[0], XQ.shape[1] // 128), True)
    assert not isBpreshuffled
    x = XQ.double() * x_scale.double().repeat_interleave(128, 1)
    scale = w_scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)[: WQ.shape[0], : WQ.shape[1]]
    return (x @ (WQ.double() * scale).t()).to(dtype)

"""Quantizes activations to fp8 e4m3 in one launch, with one read for the greatest magnitude, the division and the
rounding.

These are not ops of their own, because the layout of scales and the padding of rows are those that cuBLAS needs for the
following GEMM.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

GROUP = 128
"""Inputs (K) that share a scale."""
ROW_UNIT = 4
"""cuBLAS needs each column of the groups' scales to start at a multiple of 16 bytes, so rows are padded to this
multiple."""

_FP8 = torch.float8_e4m3fn
_LARGEST = tl.constexpr(torch.finfo(_FP8).max)
_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_TILE = 4096
"""Elements of groups per program."""


@triton.jit
def rows_kernel(x, values, scales, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A program quantizes one row of ``SIZE <= BLOCK`` elements of ``x``, whose rows have stride ``stride``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < SIZE
    found = tl.load(x + row * stride + column, there, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(found), axis=0) / _LARGEST, _TINY)
    tl.store(values + row * SIZE + column, (found / scale).to(values.dtype.element_ty), there)
    tl.store(scales + row, scale)


@triton.jit(do_not_specialize=["num_rows", "padded"])
def groups_kernel(
    x, values, scales, stride, num_rows, padded, SIZE: tl.constexpr, SHARED: tl.constexpr, GROUPS: tl.constexpr
):
    """A program quantizes ``GROUPS`` groups of ``SHARED`` elements of one row; rows from ``num_rows`` on are zeros.
    ``scales`` has ``padded`` rows, contiguous along rows."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * SHARED + tl.arange(0, SHARED)[None, :]
    there = column < SIZE
    found = tl.load(x + row * stride + column, there & (row < num_rows), other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(found), axis=1) / _LARGEST, _TINY)
    tl.store(values + row * SIZE + column, (found / scale[:, None]).to(values.dtype.element_ty), there)
    tl.store(scales + group.to(tl.int64) * padded + row, scale, group * SHARED < SIZE)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` (``[tokens, in]``) as fp8 of the same shape, and the scale of each row, float32 ``[tokens, 1]``."""
    x = _rows(x)
    rows, size = x.shape
    values = torch.empty(rows, size, dtype=_FP8, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    if rows:
        rows_kernel[(rows,)](x, values, scales, x.stride(0), size, block, num_warps=min(max(block // 1024, 1), 16))
    return values, scales


def quantize_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` (``[tokens, in]``, ``in`` a multiple of 128) as fp8, with rows of zeros up to a multiple of
    :data:`ROW_UNIT`, at least one, and the scale of each 128 inputs, float32 ``[rows, in / 128]``, column-major."""
    x = _rows(x)
    num_rows, size = x.shape
    rows = max(1, triton.cdiv(num_rows, ROW_UNIT)) * ROW_UNIT  # scaled GEMMs take no empty scales
    values = torch.empty(rows, size, dtype=_FP8, device=x.device)
    scales = torch.empty(size // GROUP, rows, dtype=torch.float32, device=x.device)
    groups = min(_TILE // GROUP, triton.next_power_of_2(size // GROUP))
    grid = (rows, triton.cdiv(size, groups * GROUP))
    groups_kernel[grid](x, values, scales, x.stride(0), num_rows, rows, size, GROUP, groups, num_warps=4)
    return values, scales.t()


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()

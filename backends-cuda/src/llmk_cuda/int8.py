"""GEMMs with int8 weights and dynamically quantized int8 activations, by cuBLASLt through torch.

Activations get a scale per row, from their own greatest magnitude, so a row's values don't depend on the batch. Sums
are whole numbers, and exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight

_FEWEST = 32
"""Rows that there are at least: cuBLASLt needs more than 16."""
_COLUMNS = 1024
"""Results that a program scales."""


@triton.jit(do_not_specialize=["num_rows"])
def round_kernel(x, values, scales, stride, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A program rounds one row of ``SIZE <= BLOCK`` elements of ``x``, whose rows have stride ``stride``; rows from
    ``num_rows`` on are zeros."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < SIZE
    found = tl.load(x + row * stride + column, there & (row < num_rows), other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(found), axis=0) / 127, 1e-30)
    tl.store(values + row * SIZE + column, tl.floor(found / scale + 0.5).to(tl.int8), there)
    tl.store(scales + row, scale)


@triton.jit
def scale_kernel(
    sums, row_scale, scale, bias, out, OUT: tl.constexpr, HAS_BIAS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """``out = sums * row_scale * scale + bias``; the grid is ``[rows, blocks of COLUMNS]``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < OUT
    found = tl.load(sums + row * OUT + column, there, other=0).to(tl.float32)
    found *= tl.load(row_scale + row) * tl.load(scale + column, there, other=0.0)
    if HAS_BIAS:
        found += tl.load(bias + column, there, other=0.0).to(tl.float32)
    tl.store(out + row * OUT + column, found.to(out.dtype.element_ty), there)


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` (``[tokens, in]``) as int8 with rows of zeros up to :data:`_FEWEST`, and the scale of each row, float32."""
    x = x if x.stride(1) == 1 else x.contiguous()
    num_rows, size = x.shape
    rows = max(num_rows, _FEWEST)
    values = torch.empty(rows, size, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    warps = min(max(block // 1024, 1), 16)
    round_kernel[(rows,)](x, values, scales, x.stride(0), num_rows, SIZE=size, BLOCK=block, num_warps=warps)
    return values, scales


def linear(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype, with a scale per row of ``x``
    and per output."""
    out = x.new_empty(x.shape[0], weight.values.shape[0])
    if not len(x):
        return out
    values, row_scale = rounded(x)
    sums = torch._int_mm(values, weight.values.t())
    columns = min(_COLUMNS, triton.next_power_of_2(out.shape[1]))
    added = out if bias is None else bias
    scale_kernel[(len(x), triton.cdiv(out.shape[1], columns))](
        *(sums, row_scale, weight.scale, added, out),
        OUT=out.shape[1],
        HAS_BIAS=bias is not None,
        COLUMNS=columns,
        num_warps=4,
    )
    return out

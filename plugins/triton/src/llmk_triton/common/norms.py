"""Root-mean-square norms, with and without residual sums, one launch each. All use one kernel.

Intermediates are rounded to ``x``'s dtype exactly where :mod:`llmk.reference.norms` rounds them. Each row is reduced by
one program, so the norms are batch-invariant.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.common import pdl

_TILE = 2048
"""Least elements per program: several short rows share one program."""


@triton.jit
def _round(x, like):
    """``x`` rounded to the dtype that ``like`` points to, as float32."""
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def normed(x, weight, out, EPS: tl.constexpr, SIZE: tl.constexpr, OFFSET: tl.constexpr):
    """The norm of every row of ``x`` ``[rows, columns]``, float32 and rounded; ``weight`` is ``[columns]``."""
    x *= tl.rsqrt(tl.sum(x * x, axis=1) / SIZE + EPS)[:, None]
    if OFFSET != 0.0:
        return _round(x * (OFFSET + weight)[None, :], out)
    return _round(_round(x, out) * weight[None, :], out)


@triton.jit(do_not_specialize=["num_rows"])
def norm_kernel(
    x, residual, post_weight, weight, out, total, num_rows, x_row,
    EPS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr,
    FACTOR: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_POST: tl.constexpr, SUMS_ALONE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``out = norm(total)`` with ``total = residual + FACTOR * x``, or ``residual + norm(x)`` by ``post_weight``. With
    ``SUMS_ALONE``, only ``total`` is computed.

    Tensors are ``[num_rows, SIZE]``, contiguous but for ``x``, which has a row every ``x_row`` elements. Each program
    computes ``ROWS`` rows, with ``BLOCK >= SIZE`` columns.
    """
    pdl.release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    scale = tl.load(weight + column, column < SIZE, other=0.0).to(tl.float32)
    if HAS_POST:
        post_scale = tl.load(post_weight + column, column < SIZE, other=0.0).to(tl.float32)
    pdl.wait(PDL)
    inside = (row < num_rows)[:, None] & (column < SIZE)[None, :]
    place = row.to(tl.int64)[:, None] * SIZE + column[None, :]
    source = x + row.to(tl.int64)[:, None] * x_row + column[None, :]
    values = tl.load(source, inside, other=0.0).to(tl.float32)
    if HAS_POST:
        values = normed(values, post_scale, out, EPS, SIZE, OFFSET)
    if FACTOR != 1.0:
        values = _round(values * FACTOR, out)
    if HAS_RESIDUAL:
        values = _round(values + tl.load(residual + place, inside, other=0.0).to(tl.float32), total)
        tl.store(total + place, values.to(total.dtype.element_ty), inside)
        values = _round(values, out)
    if not SUMS_ALONE:
        values = normed(values, scale, out, EPS, SIZE, OFFSET)
        tl.store(out + place, values.to(out.dtype.element_ty), inside)


def tile_of(size: int) -> tuple[int, int, int]:
    """Rows and columns of a program that norms whole rows of ``size`` elements, and its warps."""
    block: int = triton.next_power_of_2(size)
    rows = max(1, _TILE // block)
    return rows, block, min(max(rows * block // 512, 1), 16)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, norm_offset: float = 0.0) -> Tensor:
    """As :func:`llmk.reference.norms.rms_norm`. Rows may be parts of wider ones."""
    if x.dim() != 2 or x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(x, x, weight, weight, out, out, eps, norm_offset, False, False)
    return out


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    norm_offset: float = 0.0,
    residual_multiplier: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """``(normed, sum)`` with ``sum = x + residual``; see :func:`llmk.reference.norms.make_add_rms_norm`."""
    return _add_norm(x, residual, None, weight, eps, norm_offset, factor=residual_multiplier)


def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, norm_offset: float = 0.0) -> Tensor:
    """``residual + norm(x)``; see :func:`llmk.reference.norms.make_rms_norm_add`."""
    x, residual = x.contiguous(), residual.contiguous()
    total = torch.empty_like(x)
    _launch(x, residual, weight, weight, total, total, eps, norm_offset, True, True, sums_alone=True)
    return total


def add_rms_norm_fp32_residual(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The same with a sum in float32; see :func:`llmk.reference.norms.make_add_rms_norm_fp32_residual`."""
    return _add_norm(x, residual, None, weight, eps, 0.0, total_dtype=torch.float32)


def sandwich_norm(
    x: Tensor, residual: Tensor, post_weight: Tensor, pre_weight: Tensor, eps: float, *, norm_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Norms ``x``, adds the residual, norms the sum; see :func:`llmk.reference.norms.make_sandwich_norm`."""
    return _add_norm(x, residual, post_weight, pre_weight, eps, norm_offset)


def _add_norm(
    x: Tensor,
    residual: Tensor,
    post_weight: Tensor | None,
    weight: Tensor,
    eps: float,
    norm_offset: float,
    total_dtype: torch.dtype | None = None,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x, dtype=total_dtype)
    post = weight if post_weight is None else post_weight
    _launch(x, residual, post, weight, out, total, eps, norm_offset, True, post_weight is not None, factor)
    return out, total


def _launch(
    x: Tensor,
    residual: Tensor,
    post_weight: Tensor,
    weight: Tensor,
    out: Tensor,
    total: Tensor,
    eps: float,
    norm_offset: float,
    has_residual: bool,
    has_post: bool,
    factor: float = 1.0,
    sums_alone: bool = False,
) -> None:
    size = x.shape[-1]
    num_rows = x.numel() // size
    if not num_rows:
        return
    rows, block, warps = tile_of(size)
    norm_kernel[(triton.cdiv(num_rows, rows),)](
        x,
        residual,
        post_weight,
        weight,
        out,
        total,
        num_rows,
        x.stride(-2) if x.dim() > 1 else size,
        eps,
        size,
        rows,
        block,
        norm_offset,
        factor,
        has_residual,
        has_post,
        sums_alone,
        num_warps=warps,
        **pdl.options(),
    )

"""LayerNorm (arXiv:1607.06450), with and without a residual sum, one launch each.

Rounded once, as :mod:`llmk.reference.norms` does. Each row is reduced by one program, so the norms are batch-invariant.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from llmk_triton.common import pdl
from llmk_triton.common.norms import tile_of


@triton.jit(do_not_specialize=["num_rows"])
def layer_norm_kernel(
    x, residual, weight, bias, out, total, num_rows,
    EPS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr,
    FACTOR: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``out = layer_norm(total)`` with ``total = residual + FACTOR * x``, or ``x`` itself.

    Tensors are ``[num_rows, SIZE]``, contiguous; each program computes ``ROWS`` rows, with ``BLOCK >= SIZE`` columns.
    """
    pdl.release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    if HAS_WEIGHT:
        scale = OFFSET + tl.load(weight + column, column < SIZE, other=0.0).to(tl.float32)
    if HAS_BIAS:
        shift = tl.load(bias + column, column < SIZE, other=0.0).to(tl.float32)
    pdl.wait(PDL)
    inside = (row < num_rows)[:, None] & (column < SIZE)[None, :]
    place = row.to(tl.int64)[:, None] * SIZE + column[None, :]
    values = tl.load(x + place, inside, other=0.0).to(tl.float32)
    if FACTOR != 1.0:
        values = (values * FACTOR).to(out.dtype.element_ty).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + place, inside, other=0.0).to(tl.float32)
        values = values.to(total.dtype.element_ty).to(tl.float32)
        tl.store(total + place, values.to(total.dtype.element_ty), inside)
    values -= (tl.sum(values, axis=1) / SIZE)[:, None]
    values = tl.where(inside, values, 0.0)
    values *= tl.rsqrt(tl.sum(values * values, axis=1) / SIZE + EPS)[:, None]
    if HAS_WEIGHT:
        values *= scale[None, :]
    if HAS_BIAS:
        values += shift[None, :]
    tl.store(out + place, values.to(out.dtype.element_ty), inside)


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, norm_offset: float = 0.0
) -> Tensor:
    """As :func:`llmk.reference.norms.layer_norm`."""
    return _normed(x.contiguous(), None, weight, bias, eps, norm_offset, 1.0)[0]


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    norm_offset: float = 0.0,
    residual_multiplier: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """``(normed, sum)`` with ``sum = x + residual``; see :func:`llmk.reference.norms.make_add_layer_norm`."""
    return _normed(x.contiguous(), residual.contiguous(), weight, bias, eps, norm_offset, residual_multiplier)


def _normed(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm_offset: float,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """The norm, and the sum that was normed."""
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    size = x.shape[-1]
    num_rows = x.numel() // size
    if not num_rows:
        return out, total
    rows, block, warps = tile_of(size)
    layer_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x,
        x if residual is None else residual,
        x if weight is None else weight,
        x if bias is None else bias,
        out,
        total,
        num_rows,
        eps,
        size,
        rows,
        block,
        norm_offset,
        factor,
        residual is not None,
        weight is not None,
        bias is not None,
        num_warps=warps,
        **pdl.options(),
    )
    return out, total

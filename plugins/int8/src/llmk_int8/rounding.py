"""Rounds plain weights to integers, some rows at a time, so that what is computed in between stays in the processor's
cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

GROUP = 32
"""Inputs of a group of 4-bit numbers."""
_LOWEST = -8
"""The 4-bit number that the value of a group which is farthest from zero becomes."""
_ROUNDER = 1.5 * 2**23
"""What leaves no bits for fractions when it is added. torch's own rounding starts threads for few elements."""
_PIECE = 1 << 14
"""Weights that are rounded at a time: as many as torch computes in one thread, so that no threads wait for others."""

Parts = dict[str, Tensor]


def int8_rows(weight: Tensor) -> Parts:
    """``weight`` int8 and ``weight_scale`` float32 ``[out, 1]`` of ``[out, in]``: a scale per row, by which its largest
    value becomes 127."""
    return _by_pieces(weight, _int8)


def int4_groups(weight: Tensor) -> Parts:
    """``weight_packed`` uint8 ``[out, in / 2]`` and ``weight_scale`` float32 ``[out, groups]`` of ``[out, in]``.

    As in llama.cpp's Q4_0, the value of a group that is farthest from zero becomes -8, with either sign of the scale;
    then the scale is the one with the least squared error for these numbers, rounded to float16.
    """
    return _by_pieces(weight, _int4)


def _by_pieces(weight: Tensor, rounded: Callable[[Tensor], Parts]) -> Parts:
    rows = max(1, _PIECE // max(1, weight.shape[1]))
    pieces = [rounded(piece) for piece in weight.split(rows)]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _rounded(values: Tensor) -> Tensor:
    """Rounded to nearest, ties to even, in place; for values up to 2**22."""
    return values.add_(_ROUNDER).sub_(_ROUNDER)


def _int8(weight: Tensor) -> Parts:
    wide = weight.float()
    largest = wide.abs().amax(dim=1, keepdim=True)
    scale = torch.where(largest > 0, largest / 127, 1.0)
    return {"weight": _rounded(wide / scale).to(torch.int8), "weight_scale": scale}


def _int4(weight: Tensor) -> Parts:
    outputs = weight.shape[0]
    groups = weight.float().view(-1, GROUP).t().contiguous()  # reductions over the first dimension are fast
    low, high = groups.amin(0), groups.amax(0)
    farthest = torch.where(high > -low, high, low)
    scale = torch.where(farthest == 0, 1.0, farthest / _LOWEST)
    numbers = _rounded(groups / scale).clamp_(_LOWEST, -_LOWEST - 1)
    squares = (numbers * numbers).sum(0)
    fitted = (groups * numbers).sum(0).div_(torch.where(squares == 0, 1.0, squares))
    unsigned = numbers.sub_(_LOWEST).to(torch.uint8)
    packed = (unsigned[0::2] | (unsigned[1::2] << 4)).t()
    return {"weight_packed": packed.reshape(outputs, -1), "weight_scale": fitted.half().float().view(outputs, -1)}

"""Batch-invariant GEMMs: the result of a row is bit-identical, no matter which other rows are multiplied in the same
call.

A library chooses its order of summation by a call's shape, alignment and number of threads, not by the values. Within
calls for which these are equal, a row's bits depend only on the row and its position. So rows are computed in *tiles*:
calls with one of a few row counts, each in its own memory, padded with zeros. When a weight is prepared, the library is
tested on this machine: a tile size is used only if a row gets the same bits at every position of the tile, and the same
bits as with the other sizes. A tile of one row has only one position, so at least one size is always usable.

The test multiplies rows and weights whose exact result is zero: the computed result is nothing but rounding error, so
it changes with the order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

Gemm = Callable[[Tensor, Any], Tensor]
"""``gemm(x, weight)``: ``[..., rows, in]`` and a weight, in the layout that the GEMM takes, to ``[..., rows, out]``."""

SIZES = (1, 4, 8, 16, 32, 64)
"""Candidates for the rows of a tile: for one request, for several, and for prompts."""

_ALIGNMENT = 64
"""Bytes to which torch aligns allocations."""
_TRIALS = 4
"""Least number of rows that are tested at every position of a tile."""
_SAMPLES = 256
"""Least number of outputs that are tested at every position; if a row has few outputs, more rows are tested."""
_EXPONENTS = 6
"""Test values have exponents from minus this to this, so that short sums are rounded, too."""


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """A weight, the GEMM that takes it, and the tile sizes that are batch-invariant for it."""

    gemm: Gemm
    weight: Any
    sizes: tuple[int, ...]

    def multiply(self, x: Tensor) -> Tensor:
        """Maps Maps ``[rows, in]`` to ``[rows, out]``."""
        return in_tiles(self.gemm, x, self.weight, self.sizes)


def matmul_transposed(x: Tensor, weight: Tensor) -> Tensor:
    """torch's own ``x @ weight.T``."""
    return x @ weight.mT


def tiled(weight: Tensor) -> TiledWeight:
    """``weight`` (``[out, in]``) for :func:`matmul_transposed`."""
    sizes = invariant_sizes(matmul_transposed, weight.shape, weight.dtype, weight.device)
    return TiledWeight(matmul_transposed, aligned(weight.contiguous()), sizes)


def aligned(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy if its address is not aligned as torch aligns allocations."""
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def in_tiles(gemm: Gemm, x: Tensor, weight: Any, sizes: tuple[int, ...]) -> Tensor:
    """``gemm(x, weight)`` by tiles of ``sizes``, in ascending order, from :func:`invariant_sizes`."""
    parts = []
    for start, count, size in _split(x.shape[-2], sizes):
        tile = x.new_zeros(*x.shape[:-2], size, x.shape[-1])
        tile[..., :count, :] = x[..., start : start + count, :]
        parts.append(gemm(tile, weight)[..., :count, :])
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def invariant_sizes(
    gemm: Gemm,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    lay_out: Callable[[Tensor], Any] = lambda weight: weight,
) -> tuple[int, ...]:
    """Those of :data:`SIZES`, in ascending order, with which a row gets the same bits at every position of a tile.

    Args:
        shape: the weight's, ``[..., out, in]``.
    """
    return _invariant_sizes(gemm, tuple(shape), dtype, device, lay_out, torch.get_num_threads())


@cache
@torch.inference_mode()
def _invariant_sizes(
    gemm: Gemm,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    lay_out: Callable[[Tensor], Any],
    num_threads: int,
) -> tuple[int, ...]:
    rows, weight = cancelling(max(_TRIALS, _SAMPLES // shape[-2]), shape, dtype)
    rows, prepared = rows.to(device), lay_out(weight.to(device))
    invariant: list[int] = []
    expected: Tensor | None = None
    for size in reversed(SIZES):
        out = torch.stack([gemm(row.expand(*shape[:-2], size, -1).contiguous(), prepared) for row in rows])
        if expected is None:
            expected = out[..., :1, :]
        if torch.equal(out, expected.expand_as(out)):
            invariant.insert(0, size)
        elif not invariant:
            expected = None
    return tuple(invariant) or (1,)


def cancelling(
    num_rows: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows ``[num_rows, in]`` and a weight of ``shape`` (``[..., out, in]``), whose exact GEMM results are zero, so
    that the computed ones are rounding error. The terms that cancel are at random positions: if two halves of the sum
    cancelled, they would in any order of summation."""
    *batch, out, inner = shape
    half = max(1, inner // 2)
    random = torch.Generator().manual_seed(seed)

    def spread(*size: int) -> Tensor:
        exponents = torch.randint(-_EXPONENTS, _EXPONENTS + 1, size, generator=random)
        return torch.ldexp(torch.randn(size, generator=random), exponents).to(dtype)

    places = torch.randperm(inner, generator=random)
    signs = (places < inner // 2).to(dtype) - ((places >= inner // 2) & (places < inner // 2 * 2)).to(dtype)
    # Every output uses another window of the same random numbers: drawing a number for each element of a large weight
    # would take seconds.
    weight = spread(out + half).unfold(0, half, 1)[:out, places % half].mul_(signs)
    return spread(num_rows, half)[:, places % half], weight.expand(*batch, -1, -1).contiguous()


def _split(rows: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Start, rows and size of each tile: the smallest tile that holds the remaining rows, or, if more than a quarter of
    it would be padding, the largest that the rows fill."""
    start = 0
    while True:
        left = rows - start
        size = next((size for size in sizes if size >= left), sizes[-1])
        if 4 * left < 3 * size:
            size = max((smaller for smaller in sizes if smaller <= left), default=size)
        yield start, min(left, size), size
        start += size
        if start >= rows:
            return

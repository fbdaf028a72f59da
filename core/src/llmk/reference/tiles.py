"""Products whose rows are the same bit for bit, whatever is multiplied beside them.

A library chooses the order in which it adds up by a call's shape, alignment and number of threads, not by the numbers.
In calls that are alike in these, a row's bits depend on the row and on its place among the others, and on nothing else.
So rows go through in *tiles*: calls of a few sizes, each in memory of its own, filled up with zeros. Whether all places
of all sizes give a row the same bits is asked of library and machine when a weight is prepared. A size with a place
that differs is not used; a tile of one row has a single place, so one size always remains.

What is asked are products that cancel one another: their sum is nothing but rounding, and in another order of adding
it is another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

Product = Callable[[Tensor, Any], Tensor]
"""``[..., rows, in]`` and a weight, laid out as the product wants it, to ``[..., rows, out]``."""

SIZES = (1, 4, 8, 16, 32, 64)
"""Rows of a tile: for one request, for several, and for prompts."""

_ALIGNMENT = 64
"""Bytes to which torch aligns what it allocates."""
_TRIALS = 4
"""Least number of rows that are tried in every place."""
_SAMPLES = 256
"""Least number of outputs that are tried in every place; of few outputs, more rows are."""
_EXPONENTS = 6
"""Numbers are spread over powers of two from minus this to this, so that sums of few products are rounded, too."""


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """A weight, the product that takes it, and the sizes of tile that agree."""

    product: Product
    weight: Any
    sizes: tuple[int, ...]

    def multiply(self, x: Tensor) -> Tensor:
        """``[rows, in]`` to ``[rows, out]``."""
        return in_tiles(self.product, x, self.weight, self.sizes)


def times_transposed(x: Tensor, weight: Tensor) -> Tensor:
    """torch's own ``x @ weight.T``."""
    return x @ weight.mT


def tiled(weight: Tensor) -> TiledWeight:
    """``weight`` (``[out, in]``) for :func:`times_transposed`."""
    sizes = agreeing_sizes(times_transposed, weight.shape, weight.dtype, weight.device)
    return TiledWeight(times_transposed, aligned(weight.contiguous()), sizes)


def aligned(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy where it doesn't begin at an address that torch would allocate."""
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def in_tiles(product: Product, x: Tensor, weight: Any, sizes: tuple[int, ...]) -> Tensor:
    """``product(x, weight)`` by tiles of ``sizes``, which agree; the least comes first."""
    parts = []
    for start, count, size in _cut(x.shape[-2], sizes):
        tile = x.new_zeros(*x.shape[:-2], size, x.shape[-1])
        tile[..., :count, :] = x[..., start : start + count, :]
        parts.append(product(tile, weight)[..., :count, :])
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def agreeing_sizes(
    product: Product,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    lay_out: Callable[[Tensor], Any] = lambda weight: weight,
) -> tuple[int, ...]:
    """Those of :data:`SIZES` in all of whose places a row comes to the same, in ascending order.

    Args:
        shape: that of the weight, ``[..., out, in]``, as ``lay_out`` takes it to bring it into ``product``'s layout.
    """
    return _agreeing_sizes(product, tuple(shape), dtype, device, lay_out, torch.get_num_threads())


@cache
@torch.inference_mode()
def _agreeing_sizes(
    product: Product,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    lay_out: Callable[[Tensor], Any],
    num_threads: int,
) -> tuple[int, ...]:
    rows, weight = cancelling(max(_TRIALS, _SAMPLES // shape[-2]), shape, dtype)
    rows, prepared = rows.to(device), lay_out(weight.to(device))
    agreeing: list[int] = []
    expected: Tensor | None = None
    for size in reversed(SIZES):
        out = torch.stack([product(row.expand(*shape[:-2], size, -1).contiguous(), prepared) for row in rows])
        if expected is None:
            expected = out[..., :1, :]
        if torch.equal(out, expected.expand_as(out)):
            agreeing.insert(0, size)
        elif not agreeing:
            expected = None
    return tuple(agreeing) or (1,)


def cancelling(
    num_rows: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows ``[num_rows, in]`` and a weight of ``shape`` (``[..., out, in]``), whose products add up to zero but for
    rounding. Those that cancel stand in random places: halves that cancel as a whole do so in any order."""
    *batch, out, inner = shape
    half = max(1, inner // 2)
    random = torch.Generator().manual_seed(seed)

    def spread(*size: int) -> Tensor:
        exponents = torch.randint(-_EXPONENTS, _EXPONENTS + 1, size, generator=random)
        return torch.ldexp(torch.randn(size, generator=random), exponents).to(dtype)

    places = torch.randperm(inner, generator=random)
    signs = (places < inner // 2).to(dtype) - ((places >= inner // 2) & (places < inner // 2 * 2)).to(dtype)
    # Every output has a run of its own of the same numbers: drawing as many as a large weight has would take seconds.
    weight = spread(out + half).unfold(0, half, 1)[:out, places % half].mul_(signs)
    return spread(num_rows, half)[:, places % half], weight.expand(*batch, -1, -1).contiguous()


def _cut(rows: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Start, rows and size of each tile: the smallest that holds what is left, or, where that would be more than a
    quarter empty, the largest that can be filled."""
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

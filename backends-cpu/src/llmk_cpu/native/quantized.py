"""GEMMs with integer weights. Activations are rounded to 16-bit integers with a scale per row, which loses less than
bfloat16 does, so that sums are whole numbers. A row's result is bit-identical in any batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.reference.linear import linear_dequantized
from llmk.reference.quantized_weight import (
    GroupedWeight,
    PackedWeight,
    ScaledWeight,
    prepare_int4_group,
    prepare_int8_group,
)
from llmk_cpu.native.library import Kernel, library
from llmk_cpu.native.linear import linear_many
from llmk_cpu.native.pages import PAGES
from llmk_cpu.native.tensors import CODES, rows_of

_linear_int8 = library().function("linear_int8", "pipipippiiid")
_GEMM = "pipipppipiiiddd"
_linear_groups = library().function("linear_groups", _GEMM)
_widen_groups = library().function("widen_groups", "ppppipiiddd")
_linear_int4 = library().function("linear_int4", _GEMM)
_linear_int4_many = library().function("linear_int4_many", _GEMM)
_widen_int4 = library().function("widen_int4", "ppppipiiddd")
_pack_int4 = library().function("pack_int4", "ppii")
_tile_int4 = library().function("tile_int4", "p")
_linear_tiles = library().optional("linear_tiles", _GEMM)
_linear_tiles_many = library().function("linear_tiles_many", _GEMM)
_widen_tiles = library().optional("widen_tiles", "ppppipiiddd")
_pack_tiles = library().optional("pack_tiles", "ppii")

_BLOCK, _HALF = 32, 16
"""Inputs that the kernel multiplies at once, of which groups are multiples; groups of 8 bits may be half of them."""
_SYMMETRIC = 8
"""The number of 4 bits that represents zero where a format has no zero points."""


def _rows_together() -> int:
    rows = torch.empty((), dtype=torch.int64)
    _tile_int4(rows.data_ptr())
    return int(rows)


TOGETHER = _rows_together()
"""Rows of numbers that are stored together in tiles, by the level of instructions."""


@dataclass(frozen=True, slots=True)
class CompactWeight:
    """Numbers of 8 bits, int8 ``[out, in]``, with a scale, and perhaps a zero point, per group of inputs.

    ``scale`` and ``zero`` are ``[out, groups]``, in the narrowest dtype that represents their values; without ``zero``,
    0 represents zero.
    """

    numbers: Tensor
    scale: Tensor
    zero: Tensor | None

    @property
    def outputs(self) -> int:
        """Rows."""
        return self.numbers.shape[0]

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias`` in ``x``'s dtype."""
        return _multiply(_linear_groups, self, x, bias)

    def multiply_many(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The same with the weight rounded to ``x``'s dtype, which is faster for many rows."""
        return linear_many(x, self.rows(None, x.dtype), bias)

    def rows(self, index: Tensor | None, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`; ``None``: all rows."""
        return _rows(_widen_groups, self, index, dtype, self.numbers.shape[1])


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """A :class:`CompactWeight` for processors with AVX512-VNNI. T (:data:`TOGETHER`) rows are stored together.

    ``numbers`` is uint8 ``[out / T, T * in]``, as the kernel ``pack_tiles`` makes it, with ``outputs`` rows and rows of
    zeros behind them. ``scale`` and ``zero`` are ``[out / T, groups, T]``.
    """

    numbers: Tensor
    scale: Tensor
    zero: Tensor | None
    outputs: int

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias`` in ``x``'s dtype."""
        assert _linear_tiles is not None
        return _multiply(_linear_tiles, self, x, bias)

    def multiply_many(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The same with the weight in ``x``'s dtype or float32, which is faster for many rows."""
        return _multiply(_linear_tiles_many, self, x, bias)

    def rows(self, index: Tensor | None, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`; ``None``: all rows."""
        assert _widen_tiles is not None
        return _rows(_widen_tiles, self, index, dtype, self.numbers.shape[1] // TOGETHER)


@dataclass(frozen=True, slots=True)
class NibbleWeight:
    """Numbers of 4 bits, with a scale, and perhaps a zero point, per group of inputs. T (:data:`TOGETHER`) rows are
    stored together.

    ``numbers`` is uint8 ``[out / T, T * in / 2]``, as the kernel ``pack_int4`` makes it, with ``outputs`` rows and rows
    of zeros behind them. ``scale`` and ``zero`` are ``[out / T, groups, T]``, in the narrowest dtype that represents
    their values; without ``zero``, 8 represents zero.
    """

    numbers: Tensor
    scale: Tensor
    zero: Tensor | None
    outputs: int

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias`` in ``x``'s dtype."""
        return _multiply(_linear_int4, self, x, bias)

    def multiply_many(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The same with the weight in ``x``'s dtype or float32, which is faster for many rows."""
        return _multiply(_linear_int4_many, self, x, bias)

    def rows(self, index: Tensor | None, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`; ``None``: all rows."""
        return _rows(_widen_int4, self, index, dtype, self.numbers.shape[1] * 2 // TOGETHER)


Grouped = NibbleWeight | CompactWeight | TiledWeight


def prepare_int4(parameters: Mapping[str, Tensor]) -> NibbleWeight | PackedWeight:
    """The weight for :func:`linear_groups` from the parameters of the format ``int4_group``; the reference's where
    groups have no multiple of 32 inputs, or inputs are not in order."""
    whole = prepare_int4_group(parameters)
    outputs, bytes_of_row = whole.packed.shape
    if whole.order is not None or bytes_of_row * 2 % (whole.scale.shape[1] * _BLOCK):
        return whole
    tiles = -(-outputs // TOGETHER)
    numbers = PAGES.empty((tiles, TOGETHER * bytes_of_row), torch.uint8)
    _pack_int4(numbers.data_ptr(), whole.packed.contiguous().data_ptr(), outputs, bytes_of_row * 2)
    zero = None if bool((whole.zero == _SYMMETRIC).all()) else _together(_narrowest(whole.zero))
    return NibbleWeight(numbers, _together(_narrowest(whole.scale)), zero, outputs)


def prepare_int8(parameters: Mapping[str, Tensor]) -> TiledWeight | CompactWeight | GroupedWeight:
    """The same from the parameters of the format ``int8_group``; groups may have 16 inputs."""
    whole = prepare_int8_rows(parameters)
    if _pack_tiles is None or isinstance(whole, GroupedWeight):
        return whole
    outputs, size = whole.numbers.shape
    numbers = PAGES.empty((-(-outputs // TOGETHER), TOGETHER * size), torch.uint8)
    _pack_tiles(numbers.data_ptr(), whole.numbers.data_ptr(), outputs, size)
    zero = None if whole.zero is None else _together(whole.zero)
    return TiledWeight(numbers, _together(whole.scale), zero, outputs)


def prepare_int8_rows(parameters: Mapping[str, Tensor]) -> CompactWeight | GroupedWeight:
    """:func:`prepare_int8` on every processor, row by row."""
    whole = prepare_int8_group(parameters)
    size, group = whole.values.shape[1], whole.values.shape[1] // whole.scale.shape[1]
    if whole.order is not None or size % _BLOCK or (group % _BLOCK and group != _HALF):
        return whole
    zero = None if whole.zero is None else _narrowest(whole.zero)
    return CompactWeight(whole.values.contiguous(), _narrowest(whole.scale), zero)


def linear_int8(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in ``x``'s dtype, for int8 weights ``[out, in]`` with a scale per output."""
    rows = rows_of(x)
    count, size = rows.shape
    values, outputs = weight.values, weight.values.shape[0]
    out = torch.empty((count, outputs), dtype=x.dtype)
    _linear_int8(
        out.data_ptr(), outputs, rows.data_ptr(), rows.stride(0), values.data_ptr(), values.stride(0),
        weight.scale.data_ptr(), None if bias is None else bias.data_ptr(), count, outputs, size, CODES[x.dtype],
    )  # fmt: skip
    return out


def linear_groups(x: Tensor, weight: Grouped | PackedWeight | GroupedWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in ``x``'s dtype, for weights with a scale per group of inputs."""
    if isinstance(weight, Grouped):
        return weight.multiply(x, bias)
    return linear_dequantized(x, weight, bias)


def linear_groups_many(x: Tensor, weight: Grouped | PackedWeight | GroupedWeight, bias: Tensor | None) -> Tensor:
    """The same with the weight first widened, which pays for many rows."""
    if isinstance(weight, Grouped):
        return weight.multiply_many(x, bias)
    return linear_dequantized(x, weight, bias)


def _multiply(kernel: Kernel, weight: Grouped, x: Tensor, bias: Tensor | None) -> Tensor:
    rows = rows_of(x)
    count, size = rows.shape
    out = torch.empty((count, weight.outputs), dtype=x.dtype)
    kernel(
        out.data_ptr(), weight.outputs, rows.data_ptr(), rows.stride(0), weight.numbers.data_ptr(),
        weight.scale.data_ptr(), pointer(weight.zero), weight.scale.shape[1], pointer(bias), count, weight.outputs,
        size, CODES[x.dtype], *codes_of(weight.scale, weight.zero),
    )  # fmt: skip
    return out


def _rows(kernel: Kernel, weight: Grouped, index: Tensor | None, dtype: torch.dtype, size: int) -> Tensor:
    index = None if index is None else index.contiguous()
    count = weight.outputs if index is None else len(index)
    out = torch.empty((count, size), dtype=dtype)
    kernel(
        out.data_ptr(), weight.numbers.data_ptr(), weight.scale.data_ptr(), pointer(weight.zero),
        weight.scale.shape[1], pointer(index), count, size, CODES[dtype], *codes_of(weight.scale, weight.zero),
    )  # fmt: skip
    return out


def codes_of(scale: Tensor, zero: Tensor | None) -> tuple[int, int]:
    """The codes of the dtypes of scales and zero points."""
    return CODES[scale.dtype], CODES[(scale if zero is None else zero).dtype]


def pointer(tensor: Tensor | None) -> int | None:
    """Where its elements are."""
    return None if tensor is None else tensor.data_ptr()


def _narrowest(values: Tensor) -> Tensor:
    """Float32 values in 16 bits, if that is exact."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal((narrow := values.to(dtype)).float(), values):
            return narrow.contiguous()
    return values.contiguous()


def _together(values: Tensor) -> Tensor:
    """``[out, groups]`` as ``[out / T, groups, T]``, with zeros behind the last row."""
    padded = torch.nn.functional.pad(values, (0, 0, 0, -len(values) % TOGETHER))
    tiles = padded.view(-1, TOGETHER, values.shape[1]).transpose(1, 2)
    return PAGES.empty(tiles.shape, tiles.dtype).copy_(tiles)

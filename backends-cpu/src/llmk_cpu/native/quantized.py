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
from llmk_cpu.native.library import library
from llmk_cpu.native.linear import linear_many
from llmk_cpu.native.tensors import CODES, rows_of

_linear_int8 = library().function("linear_int8", "pipipippiiid")
_linear_groups = library().function("linear_groups", "pipipippipiiiddd")
_widen_groups = library().function("widen_groups", "ppippiiiddd")

_BLOCK, _HALF = 32, 16
"""Inputs that the kernel multiplies at once, of which groups are multiples; groups of 8 bits may be half of them."""
_SYMMETRIC = 8
"""The number of 4 bits that represents zero where a format has no zero points."""


@dataclass(frozen=True, slots=True)
class CompactWeight:
    """Numbers of 4 or 8 bits with a scale, and perhaps a zero point, per group of inputs.

    ``numbers`` is int8 ``[out, in]``, or uint8 ``[out, in / 2]``, the even input in the low nibble. ``scale`` and
    ``zero`` are ``[out, groups]``, in the narrowest dtype that represents their values; without ``zero``, 0 represents
    zero, or 8 in 4 bits.
    """

    numbers: Tensor
    scale: Tensor
    zero: Tensor | None

    @property
    def bits(self) -> int:
        """Of a number."""
        return 8 if self.numbers.dtype == torch.int8 else 4

    def widen(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]`` in ``dtype``, rounded once."""
        outputs, columns = self.numbers.shape
        size = columns * 8 // self.bits
        out = torch.empty((outputs, size), dtype=dtype)
        _widen_groups(
            out.data_ptr(), self.numbers.data_ptr(), self.bits, self.scale.data_ptr(), pointer(self.zero),
            self.scale.shape[1], outputs, size, CODES[dtype], *self.codes,
        )  # fmt: skip
        return out

    @property
    def codes(self) -> tuple[int, int]:
        """Of the dtypes of scales and zero points."""
        return codes_of(self.scale, self.zero)


def prepare_int4(parameters: Mapping[str, Tensor]) -> CompactWeight | PackedWeight:
    """The weight for :func:`linear_groups` from the parameters of the format ``int4_group``; the reference's where
    groups have no multiple of 32 inputs."""
    whole = prepare_int4_group(parameters)
    if whole.packed.shape[1] * 2 % (whole.scale.shape[1] * _BLOCK):
        return whole
    zero = None if bool((whole.zero == _SYMMETRIC).all()) else _narrowest(whole.zero)
    return CompactWeight(whole.packed.contiguous(), _narrowest(whole.scale), zero)


def prepare_int8(parameters: Mapping[str, Tensor]) -> CompactWeight | GroupedWeight:
    """The same from the parameters of the format ``int8_group``; groups may have 16 inputs."""
    whole = prepare_int8_group(parameters)
    size, group = whole.values.shape[1], whole.values.shape[1] // whole.scale.shape[1]
    if size % _BLOCK or (group % _BLOCK and group != _HALF):
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


def linear_groups(x: Tensor, weight: CompactWeight | PackedWeight | GroupedWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in ``x``'s dtype, for weights with a scale per group of inputs."""
    if not isinstance(weight, CompactWeight):
        return linear_dequantized(x, weight, bias)
    rows = rows_of(x)
    count, size = rows.shape
    outputs, groups = weight.scale.shape
    out = torch.empty((count, outputs), dtype=x.dtype)
    _linear_groups(
        out.data_ptr(), outputs, rows.data_ptr(), rows.stride(0), weight.numbers.data_ptr(), weight.bits,
        weight.scale.data_ptr(), pointer(weight.zero), groups, pointer(bias), count, outputs, size, CODES[x.dtype],
        *weight.codes,
    )  # fmt: skip
    return out


def linear_groups_many(x: Tensor, weight: CompactWeight | PackedWeight | GroupedWeight, bias: Tensor | None) -> Tensor:
    """The same with the weight first rounded to ``x``'s dtype, which pays for many rows."""
    if not isinstance(weight, CompactWeight):
        return linear_dequantized(x, weight, bias)
    return linear_many(x, weight.widen(x.dtype), bias)


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

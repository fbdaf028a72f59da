"""GEMMs with integer weights. Activations are rounded to 16-bit integers with a scale per row, which loses less than
bfloat16 does, so that sums are whole numbers. A row's result is bit-identical in any batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.reference.linear import linear_dequantized
from llmk.reference.quantized_weight import PackedWeight, ScaledWeight, prepare_int4_group
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, rows_of

_linear_int8 = library().function("linear_int8", "pipipippiiid")
_linear_int4 = library().function("linear_int4", "pipipppipiiidd")

_BLOCK = 32
"""Groups consist of whole blocks of the kernel."""
_SYMMETRIC = 8
"""The number that represents zero where a format has no zero points."""


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """4-bit numbers, two to a byte, with a scale per group of inputs.

    ``packed`` is uint8 ``[out, in / 2]``, the even input in the low nibble; ``scale`` ``[out, groups]`` in the
    narrowest dtype that represents its values; ``zero`` uint8 ``[out, groups]``, or ``None`` where 8 represents zero.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor | None


def prepare_int4(parameters: Mapping[str, Tensor]) -> GroupedWeight | PackedWeight:
    """The weight for :func:`linear_int4` from the parameters of the format ``int4_group``; the reference's where groups
    have no multiple of 32 inputs."""
    whole = prepare_int4_group(parameters)
    if whole.packed.shape[1] * 2 % (whole.scale.shape[1] * _BLOCK):
        return whole
    zero = whole.zero.to(torch.uint8)
    return GroupedWeight(
        whole.packed.contiguous(), _narrowest(whole.scale), None if bool((zero == _SYMMETRIC).all()) else zero
    )


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


def linear_int4(x: Tensor, weight: GroupedWeight | PackedWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in ``x``'s dtype, for 4-bit weights with a scale per group of inputs."""
    if isinstance(weight, PackedWeight):
        return linear_dequantized(x, weight, bias)
    rows = rows_of(x)
    count, size = rows.shape
    outputs, groups = weight.scale.shape
    out = torch.empty((count, outputs), dtype=x.dtype)
    _linear_int4(
        out.data_ptr(), outputs, rows.data_ptr(), rows.stride(0), weight.packed.data_ptr(), weight.scale.data_ptr(),
        None if weight.zero is None else weight.zero.data_ptr(), groups, None if bias is None else bias.data_ptr(),
        count, outputs, size, CODES[x.dtype], CODES[weight.scale.dtype],
    )  # fmt: skip
    return out


def _narrowest(scale: Tensor) -> Tensor:
    """``scale`` (float32) in 16 bits, if that is exact."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal((narrow := scale.to(dtype)).float(), scale):
            return narrow.contiguous()
    return scale.contiguous()

"""Types of blocks that stay packed in memory: their numbers, scales and zero points, in the layout of llmk's formats.

The layout of blocks is that of llama.cpp (``ggml-common.h``, ``ggml-quants.c``). All of them become one of two formats,
without loss: ``int4_group``, unsigned 4-bit numbers, two to a byte with the even input in the low bits; or
``int8_group``, signed 8-bit numbers. Each has a float32 scale per group of consecutive inputs, and a float32 zero point
where the type has one: a weight is ``(number - zero) * scale``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

INT4, INT8 = "int4_group", "int8_group"


class Scales(NamedTuple):
    """The scale of each group, and what is subtracted from ``number * scale``; no minimum where numbers are signed.
    float32 ``[rows, groups]``."""

    scale: Tensor
    minimum: Tensor | None = None


class Type(NamedTuple):
    """A type: the inputs of a group, bits of a number, and the bytes of a block; and functions of rows of blocks, uint8
    ``[rows, blocks, bytes]``."""

    group: int
    bits: int
    block_bytes: int
    numbers: Callable[[Tensor], Tensor]
    """int8 ``[rows, inputs]``."""
    scales: Callable[[Tensor], Scales]
    nibbles: Callable[[Tensor], Tensor] | None = None
    """Of types of 4 bits, the unsigned numbers as ``int4_group`` stores them, uint8 ``[rows, inputs / 2]``."""


def _half(data: Tensor, start: int) -> Tensor:
    """The float16 at byte ``start`` of every block, as float32 ``[rows, blocks, 1]``."""
    import torch

    return data[..., start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """``[..., 2, bytes]``: the low bits of some bytes, and then their high bits."""
    import torch

    return torch.stack((data & 15, data >> 4), dim=-2)


def _pairs(data: Tensor) -> Tensor:
    """The same numbers, two to a byte, the first in the low bits: ``[..., bytes]``."""
    import torch

    even, odd = data[..., 0::2], data[..., 1::2]
    return torch.cat(((even & 15) | (odd << 4), (even >> 4) | (odd & 0xF0)), dim=-1)


def _flat(numbers: Tensor) -> Tensor:
    import torch

    return numbers.to(torch.int8).flatten(1)


def _q8_0(data: Tensor) -> Tensor:
    import torch

    return _flat(data[..., 2:].contiguous().view(torch.int8))


def _half_scales(data: Tensor) -> Scales:
    return Scales(_half(data, 0).flatten(1))


def _q4_0(data: Tensor) -> Tensor:
    import torch

    return _flat(_nibbles(data[..., 2:]).to(torch.int8) - 8)


def _q4_0_nibbles(data: Tensor) -> Tensor:
    return _pairs(data[..., 2:]).flatten(1)


def _k_scales(data: Tensor) -> Scales:
    """Of blocks of 256 that start with two float16 and 12 bytes, the eight scales and minima of 6 bits."""
    import torch

    low, middle, high = data[..., 4:8], data[..., 8:12], data[..., 12:16]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), dim=-1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), dim=-1)
    return Scales((scales * _half(data, 0)).flatten(1), (minima * _half(data, 2)).flatten(1))


def _q4_k(data: Tensor) -> Tensor:
    return _flat(_nibbles(data[..., 16:].unflatten(-1, (4, 32))))


def _q4_k_nibbles(data: Tensor) -> Tensor:
    return _pairs(data[..., 16:].unflatten(-1, (4, 32))).flatten(1)


def _q5_k(data: Tensor) -> Tensor:
    import torch

    low = _nibbles(data[..., 48:].unflatten(-1, (4, 32))).flatten(-3, -2)
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (data[..., None, 16:48] >> shifts) & 1
    return _flat(low | (high << 4))


def _q6_k(data: Tensor) -> Tensor:
    import torch

    low = _nibbles(data[..., :128].unflatten(-1, (2, 64))).unflatten(-1, (2, 32)).flatten(-3, -2)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = (data[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts) & 3
    return _flat((low | (high << 4)).to(torch.int8) - 32)


def _q6_k_scales(data: Tensor) -> Scales:
    import torch

    return Scales((data[..., 192:208].contiguous().view(torch.int8) * _half(data, 208)).flatten(1))


TYPES: Mapping[str, Type] = {
    "Q8_0": Type(32, 8, 34, _q8_0, _half_scales),
    "Q4_0": Type(32, 4, 18, _q4_0, _half_scales, _q4_0_nibbles),
    "Q4_K": Type(32, 4, 144, _q4_k, _k_scales, _q4_k_nibbles),
    "Q5_K": Type(32, 5, 176, _q5_k, _k_scales),
    "Q6_K": Type(16, 6, 210, _q6_k, _q6_k_scales),
}
"""The types that can stay packed, by their names."""

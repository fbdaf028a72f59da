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


class Groups(NamedTuple):
    """Rows of numbers, int8 ``[rows, inputs]``, and for each group the scale and the minimum, float32 ``[rows,
    groups]``: a weight is ``number * scale - minimum``. No minimum: numbers are signed."""

    numbers: Tensor
    scale: Tensor
    minimum: Tensor | None = None


class Type(NamedTuple):
    """A type: the inputs of a group, bits of a number, the bytes of a block, and what unpacks rows of blocks, uint8
    ``[rows, blocks, bytes]``."""

    group: int
    bits: int
    block_bytes: int
    unpack: Callable[[Tensor], Groups]


def _half(data: Tensor, start: int) -> Tensor:
    """The float16 at byte ``start`` of every block, as float32 ``[rows, blocks, 1]``."""
    import torch

    return data[..., start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """``[..., 2, bytes]``: the low bits of some bytes, and then their high bits."""
    import torch

    return torch.stack((data & 15, data >> 4), dim=-2)


def _groups(numbers: Tensor, scale: Tensor, minimum: Tensor | None = None) -> Groups:
    import torch

    low = None if minimum is None else minimum.flatten(1)
    return Groups(numbers.to(torch.int8).flatten(1), scale.flatten(1), low)


def _q8_0(data: Tensor) -> Groups:
    import torch

    return _groups(data[..., 2:].contiguous().view(torch.int8), _half(data, 0))


def _q4_0(data: Tensor) -> Groups:
    import torch

    return _groups(_nibbles(data[..., 2:]).to(torch.int8) - 8, _half(data, 0))


def _scales_and_minima(data: Tensor) -> tuple[Tensor, Tensor]:
    """Of blocks of 256 that start with two float16 and 12 bytes, the eight scales and minima of 6 bits."""
    import torch

    low, middle, high = data[..., 4:8], data[..., 8:12], data[..., 12:16]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), dim=-1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), dim=-1)
    return scales * _half(data, 0), minima * _half(data, 2)


def _q4_k(data: Tensor) -> Groups:
    numbers = _nibbles(data[..., 16:].unflatten(-1, (4, 32)))
    return _groups(numbers, *_scales_and_minima(data))


def _q5_k(data: Tensor) -> Groups:
    import torch

    low = _nibbles(data[..., 48:].unflatten(-1, (4, 32))).flatten(-3, -2)
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (data[..., None, 16:48] >> shifts) & 1
    return _groups(low | (high << 4), *_scales_and_minima(data))


def _q6_k(data: Tensor) -> Groups:
    import torch

    low = _nibbles(data[..., :128].unflatten(-1, (2, 64))).unflatten(-1, (2, 32)).flatten(-3, -2)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = (data[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts) & 3
    scales = data[..., 192:208].contiguous().view(torch.int8)
    return _groups((low | (high << 4)).to(torch.int8) - 32, scales * _half(data, 208))


TYPES: Mapping[str, Type] = {
    "Q8_0": Type(32, 8, 34, _q8_0),
    "Q4_0": Type(32, 4, 18, _q4_0),
    "Q4_K": Type(32, 4, 144, _q4_k),
    "Q5_K": Type(32, 5, 176, _q5_k),
    "Q6_K": Type(16, 6, 210, _q6_k),
}
"""The types that can stay packed, by their names."""

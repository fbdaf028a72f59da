"""Numbers of a few bits, as files pack them, and as the formats ``int4_group`` and ``int8_group`` hold them."""

from __future__ import annotations

import torch
from torch import Tensor


def unpacked(data: Tensor, bits: int) -> Tensor:
    """The numbers in rows of bytes, uint8 ``[rows, bytes]`` to uint8 ``[rows, 8 * bytes / bits]``. The first number is
    in the lowest bits of the first byte, and numbers may lie across two bytes, as they may lie across two words of any
    size in little-endian order."""
    if bits == 8:
        return data
    rows = data.shape[0]
    groups = torch.nn.functional.pad(data.view(rows, -1, bits), (0, 1)).to(torch.int16)
    numbers = []
    for first in range(0, 8 * bits, bits):
        byte, shift = divmod(first, 8)
        numbers.append((groups[..., byte] | groups[..., byte + 1] << 8) >> shift & ((1 << bits) - 1))
    return torch.stack(numbers, dim=-1).to(torch.uint8).view(rows, -1)


def in_nibbles(numbers: Tensor) -> Tensor:
    """Numbers of at most 4 bits, two to a byte with the even one in the low bits: uint8 ``[rows, inputs]`` to uint8
    ``[rows, inputs / 2]``."""
    return numbers[:, 0::2] | numbers[:, 1::2] << 4


def from_nibbles(packed: Tensor) -> Tensor:
    """The reverse of :func:`in_nibbles`."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def signed(numbers: Tensor) -> Tensor:
    """Numbers of 8 bits, uint8, minus 128: int8."""
    return (numbers ^ 128).view(torch.int8)

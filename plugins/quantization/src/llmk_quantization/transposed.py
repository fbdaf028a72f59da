"""Weights whose rows are inputs in the files (GPTQ, AWQ), decoded so that their rows are outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api import StoredTensor
from llmk_quantization.bits import in_nibbles, signed, unpacked

WORD = 32
"""Bits of the words that numbers are packed into."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Base of what decodes a tensor as a whole: see :class:`llmk.api.DecodeRows`. ``rows`` are those in the file."""

    rows: int

    @property
    def multiple(self) -> int:
        """All rows at once."""
        return 0

    def words(self, stored: Tensor) -> Tensor:
        """The int32 words of the file, ``[rows, columns]``."""
        return stored.view(torch.int32).view(self.rows, -1)


@dataclass(frozen=True, slots=True)
class Scales(Whole):
    """``[groups, out]`` of ``dtype``, transposed."""

    dtype: torch.dtype

    def __call__(self, stored: Tensor) -> Tensor:
        """``[out, groups]``."""
        return stored.view(self.dtype).view(self.rows, -1).T


@dataclass(frozen=True, slots=True)
class Inputs(Whole):
    """Numbers packed along inputs: words ``[in * bits / 32, out]`` (GPTQ's weights)."""

    bits: int

    def __call__(self, stored: Tensor) -> Tensor:
        """int8 ``[out, in]`` for 8 bits, else uint8 ``[out, in / 2]``."""
        data = self.words(stored).T.contiguous().view(torch.uint8)
        if self.bits == 8:
            return signed(data)
        return data if self.bits == 4 else in_nibbles(unpacked(data, self.bits))


@dataclass(frozen=True, slots=True)
class Outputs(Whole):
    """Numbers packed along outputs: words ``[in or groups, out * bits / 32]``. The numbers of 32 bits are in the order
    ``places`` of the word's bits, from the lowest; ``added`` is added to each."""

    bits: int
    places: tuple[int, ...] = ()
    added: int = 0

    def __call__(self, stored: Tensor) -> Tensor:
        """uint8 ``[out, in or groups]``."""
        numbers = unpacked(self.words(stored).view(torch.uint8), self.bits)
        if self.places:
            numbers = numbers.unflatten(1, (-1, len(self.places)))[..., list(self.places)].flatten(1)
        return (numbers + self.added & ((1 << self.bits) - 1)).T


@dataclass(frozen=True, slots=True)
class PackedOutputs(Outputs):
    """The same, of which two inputs are packed to a byte."""

    def __call__(self, stored: Tensor) -> Tensor:
        """uint8 ``[out, in / 2]``."""
        return in_nibbles(Outputs.__call__(self, stored).contiguous())


def decoded(
    tensor: StoredTensor, name: str, dtype: str, shape: Sequence[int], decode: Callable[[Tensor], Tensor]
) -> StoredTensor:
    """``tensor`` as the decoded tensor ``name`` of its module."""
    module = tensor.name.rpartition(".")[0]
    return StoredTensor(f"{module}.{name}", tensor.file, dtype, tuple(shape), tensor.start, tensor.stop, decode)  # type: ignore[arg-type]


def by_name(stored: Sequence[StoredTensor]) -> Mapping[str, StoredTensor]:
    """Tensors by the last part of their names."""
    return {tensor.name.rpartition(".")[2]: tensor for tensor in stored}

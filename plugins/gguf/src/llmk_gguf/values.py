"""Makes tensors' values of the bytes that files have for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from llmk.api import CheckpointError
from llmk_gguf.header import StoredBlocks

if TYPE_CHECKING:
    from torch import Tensor

PLAIN: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types that are stored one number after the other, which safetensors calls the same, and what torch calls them."""
_MOST_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class Dequantize:
    """Rows of a tensor as float32: ``shift`` is added to each value, and every ``head_dim`` rows are ordered as
    :func:`halves` does; 0: the rows stay as they are."""

    kind: str
    shift: float = 0.0
    head_dim: int = 0

    @property
    def multiple(self) -> int:
        """Rows that belong together."""
        return self.head_dim or 1

    def __call__(self, stored: Tensor) -> Tensor:
        """float32 ``[rows, columns]``, or ``[rows]`` for one number in a row."""
        import torch
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        if self.head_dim:
            stored = halves(stored, self.head_dim)
        values = dequantize(stored.numpy(), GGMLQuantizationType[self.kind])
        found = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        found = found + self.shift if self.shift else found
        return found[:, 0] if found.shape[1] == 1 else found


@dataclass(frozen=True, slots=True)
class Reorder:
    """Rows of plain values in the dtype ``dtype`` of torch, ordered by :func:`halves`."""

    dtype: str
    head_dim: int

    @property
    def multiple(self) -> int:
        """Rows of a head."""
        return self.head_dim

    def __call__(self, stored: Tensor) -> Tensor:
        """``[rows, columns]``, or ``[rows]`` for one number in a row."""
        import torch

        found = halves(stored, self.head_dim).view(getattr(torch, self.dtype))
        return found[:, 0] if found.shape[1] == 1 else found


@cache
def can_dequantize(kind: str) -> bool:
    """Whether the installed ``gguf`` package dequantizes a type."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    block = np.zeros((1, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]), np.uint8)
    try:
        dequantize(block, GGMLQuantizationType[kind])
    except NotImplementedError:
        return False
    return True


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """``rows`` of whole heads, in which the elements ``i`` of a head's two halves are neighbours, with one half after
    the other: the order in which transformers rotates."""
    heads = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)


def read_values(tensor: StoredBlocks) -> list[float]:
    """The values of a small plain tensor. Raises CheckpointError."""
    if tensor.kind not in ("F32", "F16") or prod(tensor.shape) > _MOST_SMALL:
        raise CheckpointError(
            f"tensor {tensor.name!r} in {tensor.file} is {tensor.kind} of shape {list(tensor.shape)}, not a short list",
            hint="convert the model again with a present llama.cpp",
        )
    with tensor.file.open() as stream:
        stream.seek(tensor.start)
        data = stream.read(tensor.stop - tensor.start)
    values: list[float] = np.frombuffer(data, "<f4" if tensor.kind == "F32" else "<f2").astype(float).tolist()
    return values

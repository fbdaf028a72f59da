"""The format *berth*: 4-bit codes into a codebook that each matrix has of its own, with a scale per group of inputs.

A projection ``[out, in]`` is stored as three tensors:

=====================  =================  =========================================================================
``weight_packed``      uint8              ``[out, in / 2]``; byte ``j`` of a group of ``G`` inputs has the code of its
                                          input ``j`` in the low bits, that of input ``j + G / 2`` in the high ones
``weight_scale``       float16, bfloat16  ``[out, in / G]``
``weight_codebook``    int8               ``[1, 16]``: what the codes stand for, in any order
=====================  =================  =========================================================================

A weight is ``codebook[code] * scale``. Levels are whole numbers, so nothing is lost in the format ``int8_group``, whose
kernels know no codebooks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, StoredTensor
from llmk.nn import Quantization
from llmk_harbor.quay_berth_config import group_size, is_below, plain_modules

LEVELS = 16
_DTYPES = {"weight_packed": ("U8",), "weight_scale": ("F16", "BF16"), "weight_codebook": ("I8",)}
_AGAIN = "download the checkpoint again, or convert it again"


class Berth(Quantization):
    """Reads the format, as parameters of ``int8_group``."""

    unsharded = ("weight_codebook",)

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(checkpoint)
        self._group = group_size(checkpoint)

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """Entries of ``plain_modules`` that name no module of the files."""
        entries = plain_modules(self.checkpoint)
        return [entry for entry in entries if not any(is_below(module, entry) for module in modules)]

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """The three tensors, of their dtypes, and of shapes that belong to each other."""
        for name in sorted(_DTYPES.keys() | stored.keys()):
            if name not in stored:
                raise CheckpointError(f"{module} stores no {name}, which the format berth has", hint=_AGAIN)
            if name not in _DTYPES:
                raise CheckpointError(f"{module}.{name} is not a tensor of the format berth", hint=_AGAIN)
            if stored[name].dtype not in _DTYPES[name]:
                wanted = " or ".join(_DTYPES[name])
                raise CheckpointError(f"{module}.{name} is {stored[name].dtype}, not {wanted}", hint=_AGAIN)
        packed = stored["weight_packed"].shape
        if len(packed) != 2 or packed[1] * 2 % self._group:
            found = f"{module}.weight_packed has shape {list(packed)}"
            raise CheckpointError(f"{found}, which are no rows of groups of {self._group} inputs", hint=_AGAIN)
        shapes = {"weight_scale": (packed[0], packed[1] * 2 // self._group), "weight_codebook": (1, LEVELS)}
        for name, shape in shapes.items():
            if tuple(stored[name].shape) != shape:
                found = f"{module}.{name} has shape {list(stored[name].shape)}"
                raise CheckpointError(f"{found}, not {list(shape)}, as weight_packed says", hint=_AGAIN)

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """Two inputs to a byte."""
        rows, columns = stored["weight_packed"].shape
        return rows, columns * 2

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The levels, by the codebook of the projection that a row is of, and the scales."""
        if "weight_packed" not in parameters:
            return self._rounded(layer, parameters["weight"])
        packed, scale, books = (parameters[name] for name in _DTYPES)
        if sum(rows) != packed.shape[0] or books.shape[0] != len(rows):
            raise CheckpointError(
                f"{layer} has {packed.shape[0]} rows, and {books.shape[0]} codebooks for projections of {list(rows)}",
                hint=_AGAIN,
            )
        weight = books.new_empty(packed.shape[0], packed.shape[1] * 2)
        start = 0
        for book, count in zip(books, rows, strict=True):
            part = slice(start, start + count)
            weight[part] = book[_codes(packed[part], self._group).int()]
            start += count
        return {"weight": weight, "weight_scale": scale.contiguous()}

    def _rounded(self, layer: str, weight: Tensor) -> dict[str, Tensor]:
        """A dummy weight, rounded to the nearest of 255 levels."""
        rows, columns = weight.shape
        if columns % self._group:
            raise CheckpointError(f"{layer} has {columns} inputs, which are no groups of {self._group}", hint=_AGAIN)
        groups = weight.float().view(rows, -1, self._group)
        # Scales are rounded up to a number that float16 has, so that no level is beyond 127.
        scale = (groups.abs().amax(dim=-1) / 127).clamp(2.0**-24, 65504.0)
        half = scale.half()
        half = torch.where(half.float() < scale, torch.nextafter(half, torch.full_like(half, torch.inf)), half)
        levels = (groups / half.float()[..., None]).round().clamp(-127, 127)
        return {"weight": levels.to(torch.int8).view(rows, columns), "weight_scale": half}


def _codes(packed: Tensor, group: int) -> Tensor:
    """uint8 ``[rows, in]``: the codes in the order of inputs."""
    blocks = packed.reshape(packed.shape[0], -1, group // 2)
    return torch.cat((blocks & 15, blocks >> 4), dim=-1).flatten(1)

"""Integer weights of compressed-tensors: their names, scales and packing in checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from llmk.api import Checkpoint, StoredTensor
from llmk.nn.quantization import Quantization
from llmk.reference.quantize import quantize_int4_group, quantize_int8_channel, quantize_int8_group
from llmk_quantization.bits import from_nibbles, in_nibbles, signed
from llmk_quantization.dummy import group_size_of
from llmk_quantization.fp8 import CACHE_SCALES, bad, check_scale, of_other_dtype
from llmk_quantization.modules import group_finder, unmatched
from llmk_quantization.ordered import GROUP_INDEX, order_of, presented

_WIDE = ("F32", "BF16", "F16")
_WORD = 32
"""Bits of a word that numbers are packed into, the first in the lowest bits (``pack_to_int32`` of
compressed-tensors)."""
_ORDERED = ("group", "dynamic")
"""Values of ``actorder`` with which inputs have an index of their group."""
_UNUSED = ("input_scale", "input_zero_point", "azp_adj")
"""The static scale and zero point of activations. They are ignored: kernels that round activations compute a scale per
row."""


class Integers(Quantization):
    """Base of methods that read integer weights."""

    cache_scales = CACHE_SCALES

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """As the base class says."""
        return unmatched(self.checkpoint.quantization, modules) if self.checkpoint else []


class StoredInt8(Integers):
    """int8 values with a scale per output channel, or one per projection, which is repeated for its output channels.
    Activations are not quantized."""

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Requires ``weight`` in int8 and ``weight_scale``."""
        weight, scale = _required(module, stored, "weight", "weight_scale")
        if weight.dtype != "I8":
            raise bad(module, f"is stored as {weight.dtype}, not as I8")
        rows = weight.shape[0]
        check_scale(module, scale, [(), (1,), (1, 1), (rows,), (rows, 1)])

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` and ``weight_scale``."""
        weight = parameters["weight"]
        if weight.dtype != torch.int8:
            return quantize_int8_channel(weight)  # dummy values
        scale = parameters["weight_scale"].float().flatten()
        if scale.numel() == len(rows) != sum(rows):
            scale = scale.repeat_interleave(torch.tensor(rows, device=scale.device))
        if scale.numel() != sum(rows):
            raise bad(layer, f"mixes scales per output and per matrix: {scale.numel()} for {list(rows)} rows")
        return {"weight": weight, "weight_scale": scale[:, None]}


class PackedInt4(Integers):
    """4-bit numbers, packed into int32, with a scale and optionally a zero point per group of inputs, which are
    neighbours, or, with ``weight_g_idx``, any inputs."""

    unsharded = ("weight_shape", GROUP_INDEX)
    bits = 4

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(checkpoint)
        self._group_of = group_finder(checkpoint.quantization if checkpoint else {})

    @property
    def _per_word(self) -> int:
        return _WORD // self.bits

    def present(self, module: str, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
        """As the base class says: the index of groups has a row."""
        index = f"{module}.{GROUP_INDEX}"
        return [presented(each) if each.name == index and len(each.shape) == 1 else each for each in stored]

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Requires ``weight_packed``, ``weight_shape`` and ``weight_scale``, and ``weight_zero_point`` unless the
        module's group is symmetric."""
        optional = ("weight_zero_point", GROUP_INDEX)
        packed, scale, shape = _required(
            module, stored, "weight_packed", "weight_scale", "weight_shape", optional=optional
        )
        if packed.dtype != "I32" or len(packed.shape) != 2:
            raise bad(
                module, f"has a weight_packed of {packed.dtype} {list(packed.shape)}, not of I32 in two dimensions"
            )
        if shape.shape != (2,) or shape.dtype not in ("I32", "I64"):
            raise bad(module, f"has a weight_shape of {shape.dtype} {list(shape.shape)}, not of integers [2]")
        rows, columns = self.shape(stored)
        groups = scale.shape[1] if len(scale.shape) == 2 else 0
        if not groups or columns % groups:
            raise bad(module, f"has a scale of {list(scale.shape)}, which does not divide {columns} inputs into groups")
        check_scale(module, scale, [(rows, groups)])
        group = self._group_of(module)
        weights = {} if group is None else group.weights
        if (size := weights.get("group_size")) and size > 0 and groups * size != columns:
            raise bad(module, f"has a scale of {list(scale.shape)} for {columns} inputs in groups of {size}")
        self._check_index(module, stored.get(GROUP_INDEX), columns, weights)
        zero = stored.get("weight_zero_point")
        if zero is None and weights.get("symmetric", True):
            return
        if zero is None:
            raise bad(module, "lacks weight_zero_point, which its group has, since it is not symmetric")
        per_word = self._per_word
        if rows % per_word or (zero.dtype, zero.shape) != ("I32", (rows // per_word, groups)):
            wanted = f"{rows} / {per_word} rows and {groups} groups"
            raise bad(module, f"has a weight_zero_point of {zero.dtype} {list(zero.shape)}, not of I32, {wanted}")

    def _check_index(self, module: str, index: StoredTensor | None, columns: int, weights: Mapping[str, Any]) -> None:
        if index is None:
            if weights.get("actorder") in _ORDERED:
                raise bad(module, f"lacks {GROUP_INDEX}, which actorder = {weights['actorder']!r} says that it has")
        elif index.dtype != "I32" or index.shape != (1, columns):
            raise bad(module, f"has {GROUP_INDEX} of {index.dtype} {list(index.shape)}, not of I32 [{columns}]")

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """As the base class says."""
        rows, words = stored["weight_packed"].shape
        return rows, words * self._per_word

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The parameters of the weight format; zero points have a byte each."""
        if "weight" in parameters:  # dummy values
            weight = parameters["weight"]
            return self._quantized(weight, group_size_of(weight))
        # A little-endian word holds its numbers in the order of the format's bytes.
        numbers, scale = parameters["weight_packed"].contiguous().view(torch.uint8), parameters["weight_scale"].float()
        converted = {"weight_scale": scale}
        index, inputs = parameters.get(GROUP_INDEX), numbers.shape[1] * 8 // self.bits
        if index is not None and (order := order_of(layer, index, inputs, scale.shape[1])) is not None:
            converted["weight_order"] = order
            numbers = self._ordered(numbers, order)
        if (zero := parameters.get("weight_zero_point")) is not None:
            shifts = torch.arange(0, _WORD, self.bits, dtype=torch.int32, device=zero.device)
            unpacked = (zero[:, None, :] >> shifts[:, None]) & ((1 << self.bits) - 1)
            converted["weight_zero_point"] = unpacked.flatten(0, 1).to(torch.uint8)
        return self._converted(numbers, converted)

    def _quantized(self, weight: Tensor, group_size: int) -> dict[str, Tensor]:
        return quantize_int4_group(weight, group_size)

    def _ordered(self, numbers: Tensor, order: Tensor) -> Tensor:
        return in_nibbles(from_nibbles(numbers)[:, order])

    def _converted(self, numbers: Tensor, others: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"weight_packed": numbers, **others}


class PackedInt8(PackedInt4):
    """8-bit numbers, packed into int32 in the same way."""

    bits = 8

    def _quantized(self, weight: Tensor, group_size: int) -> dict[str, Tensor]:
        return quantize_int8_group(weight, group_size)

    def _ordered(self, numbers: Tensor, order: Tensor) -> Tensor:
        return numbers[:, order]

    def _converted(self, numbers: Tensor, others: dict[str, Tensor]) -> dict[str, Tensor]:
        if "weight_zero_point" in others:
            others["weight_zero_point"] = others["weight_zero_point"].float() - 128
        return {"weight": signed(numbers), **others}


def _required(
    module: str, stored: Mapping[str, StoredTensor], *names: str, optional: Sequence[str] = ()
) -> list[StoredTensor]:
    """The tensors of these names. Raises CheckpointError if one is missing, or if there is an unknown one."""
    plain = stored.get("weight")
    if plain is not None and plain.dtype in _WIDE:
        raise of_other_dtype(module, plain.dtype, "integers")
    if missing := [name for name in names if name not in stored]:
        raise bad(module, f"lacks {', '.join(missing)}")
    if unknown := sorted(set(stored) - {*names, *optional, *_UNUSED}):
        raise bad(module, f"stores {', '.join(unknown)}, which weights of this format don't have")
    return [stored[name] for name in names]

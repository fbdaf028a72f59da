"""Integer weights of compressed-tensors: their names, scales and packing in checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from llmk.api import Checkpoint, StoredTensor
from llmk.nn.quantization import Quantization
from llmk.reference.quantize import quantize_int4_group, quantize_int8_channel
from llmk_quantization.fp8 import CACHE_SCALES, bad, of_other_dtype
from llmk_quantization.modules import group_finder, unmatched

_WIDE = ("F32", "BF16", "F16")
_PER_WORD = 8
"""4-bit numbers in an int32, the first in the lowest bits (``pack_to_int32`` of compressed-tensors)."""
_LARGEST_GROUP = 128


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
        _check_scale(module, scale, [(), (1,), (1, 1), (rows,), (rows, 1)])

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
    """4-bit numbers, packed eight to an int32, with a scale and optionally a zero point per group of inputs."""

    unsharded = ("weight_shape",)

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(checkpoint)
        self._group_of = group_finder(checkpoint.quantization if checkpoint else {})

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Requires ``weight_packed``, ``weight_shape`` and ``weight_scale``, and ``weight_zero_point`` unless the
        module's group is symmetric."""
        packed, scale, shape = _required(module, stored, "weight_packed", "weight_scale", "weight_shape")
        if packed.dtype != "I32" or len(packed.shape) != 2:
            raise bad(
                module, f"has a weight_packed of {packed.dtype} {list(packed.shape)}, not of I32 in two dimensions"
            )
        if shape.shape != (2,):
            raise bad(module, f"has a weight_shape of {list(shape.shape)}, not of [2]")
        rows, columns = self.shape(stored)
        groups = scale.shape[1] if len(scale.shape) == 2 else 0
        if not groups or columns % groups:
            raise bad(module, f"has a scale of {list(scale.shape)}, which does not divide {columns} inputs into groups")
        _check_scale(module, scale, [(rows, groups)])
        zero = stored.get("weight_zero_point")
        group = self._group_of(module)
        if zero is None and (group is None or group.weights.get("symmetric", True)):
            return
        if zero is None:
            raise bad(module, "lacks weight_zero_point, which its group has, since it is not symmetric")
        if rows % _PER_WORD or (zero.dtype, zero.shape) != ("I32", (rows // _PER_WORD, groups)):
            wanted = f"{rows} / {_PER_WORD} rows and {groups} groups"
            raise bad(module, f"has a weight_zero_point of {zero.dtype} {list(zero.shape)}, not of I32, {wanted}")

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """As the base class says."""
        rows, words = stored["weight_packed"].shape
        return rows, words * _PER_WORD

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight_packed`` with two numbers to a byte, ``weight_scale``, and ``weight_zero_point`` with one to a
        byte."""
        if "weight" in parameters:  # dummy values
            weight = parameters["weight"]
            return quantize_int4_group(weight, _group_size(weight.shape[1]))
        # A little-endian word holds its numbers in the order of the format's bytes.
        converted = {
            "weight_packed": parameters["weight_packed"].contiguous().view(torch.uint8),
            "weight_scale": parameters["weight_scale"].float(),
        }
        if (zero := parameters.get("weight_zero_point")) is not None:
            shifts = torch.arange(0, 4 * _PER_WORD, 4, dtype=torch.int32, device=zero.device)
            numbers = (zero[:, None, :] >> shifts[:, None]) & 15
            converted["weight_zero_point"] = numbers.flatten(0, 1).to(torch.uint8)
        return converted


def _group_size(columns: int) -> int:
    """The largest power of two that divides ``columns``, at most 128."""
    return min(columns & -columns, _LARGEST_GROUP)


def _required(module: str, stored: Mapping[str, StoredTensor], *names: str) -> list[StoredTensor]:
    """The tensors of these names. Raises CheckpointError if one is missing, or if there is an unknown one."""
    plain = stored.get("weight")
    if plain is not None and plain.dtype in _WIDE:
        raise of_other_dtype(module, plain.dtype, "integers")
    if missing := [name for name in names if name not in stored]:
        raise bad(module, f"lacks {', '.join(missing)}")
    if unknown := sorted(set(stored) - {*names, *(("weight_zero_point",) if "weight_packed" in names else ())}):
        raise bad(module, f"stores {', '.join(unknown)}, which weights of this format don't have")
    return [stored[name] for name in names]


def _check_scale(module: str, scale: StoredTensor, shapes: Sequence[tuple[int, ...]]) -> None:
    if scale.dtype not in _WIDE or scale.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise bad(module, f"has a scale of {scale.dtype} {list(scale.shape)}, not of {wanted}")

"""Reads MLX checkpoints of 4 bits: ``weight`` uint32 (or int32, of tools without unsigned words), the first input in
the lowest bits; ``scales`` and ``biases`` by group, so that a number ``q`` stands for ``q * scale + bias``.

Embeddings and heads, which MLX stores in the same way, are made plain while they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, StoredTensor
from llmk.nn import Quantization

from .crane_mlx_config import HINT, Form, Forms

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
ALWAYS_PLAIN = ("embed_tokens", "lm_head")
"""The last parts of the names of modules whose weights llmk has plain."""


@dataclass(frozen=True, slots=True)
class Widened:
    """Decodes a whole weight to float32, which the engine rounds. It follows ``llmk.api.DecodeRows``, and reads the
    scales and biases from the file."""

    scales: StoredTensor
    biases: StoredTensor
    form: Form
    multiple: int = 0

    def __call__(self, stored: Tensor) -> Tensor:
        """``[out, in]`` of ``[1, all bytes]``."""
        scale, bias = (_read(each) for each in (self.scales, self.biases))
        rows = stored.reshape(len(scale), -1)
        mask = (1 << self.form.bits) - 1
        numbers = torch.stack([rows >> shift for shift in range(0, 8, self.form.bits)], -1) & mask
        groups = numbers.view(*scale.shape, self.form.group_size).float()
        return (groups * scale.float()[..., None] + bias.float()[..., None]).flatten(1)


class Mlx(Quantization):
    """MLX's affine quantization, kept in 4 bits."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._forms = Forms(checkpoint.quantization if checkpoint else {"group_size": 64, "bits": 4})

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """Modules of the config that the files don't have."""
        return [name for name in self._forms.own if name not in modules]

    def present(self, module: str, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
        """The same bytes as two numbers in each, under the names by which ranks share them."""
        found = {tensor.name.removeprefix(f"{module}."): tensor for tensor in stored}
        form = self._forms.of(module)
        if form is None or not {"weight", "scales", "biases"} <= found.keys():
            return stored
        weight, scales, biases = (found.pop(name) for name in ("weight", "scales", "biases"))
        self._check_sizes(module, form, weight, scales, biases)
        rows = weight.shape[0]
        if module.rpartition(".")[2] in ALWAYS_PLAIN:
            shape = (rows, scales.shape[1] * form.group_size)
            decode = Widened(scales, biases, form)
            return [replace(weight, dtype="F32", shape=shape, decode=decode), *found.values()]
        return [
            replace(weight, name=f"{module}.weight_packed", dtype="U8", shape=(rows, 4 * weight.shape[1])),
            replace(scales, name=f"{module}.weight_scale"),
            replace(biases, name=f"{module}.weight_zero_point"),
            *found.values(),
        ]

    def _check_sizes(self, module: str, form: Form, *tensors: StoredTensor) -> None:
        weight, scales, biases = tensors
        if weight.dtype not in ("U32", "I32") or scales.dtype not in DTYPES or biases.dtype != scales.dtype:
            found = ", ".join(f"{each.name} ({each.dtype})" for each in tensors)
            raise CheckpointError(f"{module} stores {found}, which MLX does not", hint=HINT)
        if len(weight.shape) != 2 or len(scales.shape) != 2 or biases.shape != scales.shape:
            shapes = ", ".join(str(each.shape) for each in tensors)
            raise CheckpointError(f"{module} has a weight, scales and biases of the shapes {shapes}", hint=HINT)
        if form.bits not in (2, 4, 8):
            raise CheckpointError(f"{module} has {form.bits} bits, of which a number is in two words", hint=HINT)
        if weight.shape[0] != scales.shape[0] or weight.shape[1] * 32 != scales.shape[1] * form.group_size * form.bits:
            raise CheckpointError(
                f"{module} has {weight.shape} words and scales {scales.shape}, not those of groups of"
                f" {form.group_size} inputs in {form.bits} bits",
                hint=HINT,
            )

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Whether all three tensors are there, and no other; their sizes were checked."""
        wanted = {"weight_packed", "weight_scale", "weight_zero_point"}
        if stored.keys() - {"bias"} != wanted:
            names = ", ".join(f"{name} ({tensor.dtype})" for name, tensor in stored.items())
            raise CheckpointError(f"{module} stores {names}, expected weight, scales and biases of MLX", hint=HINT)

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """``[out, in]``."""
        rows, columns = stored["weight_packed"].shape
        return rows, 2 * columns

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The parameters of ``int4_group``, whose zero points need not be whole: ``-bias / scale``."""
        if "weight" in parameters:
            packed, scale, bias = quantized(parameters["weight"], self._forms.common.group_size)
        else:
            packed, scale, bias = (parameters[f"weight_{name}"] for name in ("packed", "scale", "zero_point"))
        if not (scale.isfinite().all() and bias.isfinite().all()):
            raise CheckpointError(f"{layer} has a scale or a bias that is no number", hint=HINT)
        zero = -bias.float() / scale.float()
        # Groups whose scale is nothing next to the bias are constant: 0 stands for (0 - -1) * bias.
        constant = ~zero.isfinite()
        numbers = packed.view(*scale.shape, -1).masked_fill(constant[..., None], 0).flatten(1)
        return {
            "weight_packed": numbers.contiguous(),
            "weight_scale": torch.where(constant, bias, scale).contiguous(),
            "weight_zero_point": zero.masked_fill(constant, -1.0).contiguous(),
        }


def quantized(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """A plain weight rounded as MLX's checkpoints have it: two numbers to a byte, scales and biases. Zeros stay."""
    groups = weight.float().reshape(len(weight), -1, gcd(group_size, weight.shape[1]))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scale = ((high - low) / 15).clamp_min(torch.finfo(torch.float32).tiny)
    bias = (low / scale).round() * scale
    numbers = ((groups - bias[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.uint8).flatten(1)
    return numbers[:, 0::2] | (numbers[:, 1::2] << 4), scale, bias


def _read(tensor: StoredTensor) -> Tensor:
    """A small tensor from its file."""
    with tensor.file.open() as stream:
        stream.seek(tensor.start)
        data = stream.read(tensor.num_bytes)
    if len(data) != tensor.num_bytes:
        raise CheckpointError(f"{tensor.file} ends within {tensor.name}", hint="download or copy the file again")
    return torch.frombuffer(bytearray(data), dtype=DTYPES[tensor.dtype]).view(tensor.shape)

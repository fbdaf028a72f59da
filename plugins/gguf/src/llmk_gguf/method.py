"""Loads modules of GGUF files that stay packed in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn.quantization import Quantization
from llmk.reference.quantize import quantize_int4_group, quantize_int8_group

_GROUP = 16
"""Inputs of a group of dummy weights: the fewest that a type has."""
_OTHERS = ("weight_scale", "weight_zero_point")


class Groups(Quantization):
    """What both formats have in common: the reader presents a module's tensors as the parameters that kernels
    prepare."""

    NUMBERS: ClassVar[tuple[str, str]]
    """The name and the dtype of the tensor with a module's numbers."""

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Refuses a module that the reader left plain, and one that it does not present so."""
        if "weight_scale" not in stored:
            raise CheckpointError(
                f"{module} is stored plain ({', '.join(stored)}), unlike other modules of its GEMM",
                hint='serve the file with [plugin.gguf] weights = "plain"',
            )
        numbers, dtype = self.NUMBERS
        found = {name: tensor.dtype for name, tensor in stored.items()}
        wanted = {name: "F32" for name in _OTHERS if name != "weight_zero_point" or name in stored}
        if found != {numbers: dtype, **wanted}:
            raise _bad(module, f"stores {found}, expected {numbers} of {dtype} and {', '.join(_OTHERS)} of F32")
        shapes = {name: tensor.shape for name, tensor in stored.items()}
        rows, groups = shapes[numbers][0], shapes["weight_scale"][-1:]
        whole = len(shapes[numbers]) == 2 and any(groups) and not self.shape(stored)[1] % groups[0]
        if not whole or any(shapes[name] != (rows, *groups) for name in wanted):
            raise _bad(module, f"stores {shapes}, which are not whole groups of inputs for each output")


def _dummy(layer: str, parameters: Mapping[str, Tensor]) -> Tensor:
    """Dummy values in whole groups."""
    weight = parameters["weight"]
    if weight.shape[1] % _GROUP:
        raise CheckpointError(
            f"{layer} has {weight.shape[1]} inputs, which are not in groups of {_GROUP}, as GGUF files have them",
            hint='leave out model.load_format = "dummy", or serve the file with [plugin.gguf] weights = "plain"',
        )
    return weight


def _bad(module: str, what: str) -> CheckpointError:
    return CheckpointError(f"{module} {what}", hint="check that the file is whole, and report it if it is")


class Int8Groups(Groups):
    """``weight`` int8 ``[out, in]``, ``weight_scale`` float32 ``[out, groups]``, and ``weight_zero_point`` like it
    where a module of the GEMM has one."""

    NUMBERS = ("weight", "I8")

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """As the base class says."""
        return stored["weight"].shape

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """Quantizes dummy values; others stay as they are."""
        return parameters if "weight_scale" in parameters else quantize_int8_group(_dummy(layer, parameters), _GROUP)


class Int4Groups(Groups):
    """``weight_packed`` uint8 ``[out, in / 2]``, ``weight_scale`` float32 ``[out, groups]``, and ``weight_zero_point``
    like it where a module of the GEMM has one."""

    NUMBERS = ("weight_packed", "U8")

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """As the base class says."""
        rows, columns = stored["weight_packed"].shape
        return rows, columns * 2

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """Quantizes dummy values; others stay as they are."""
        return parameters if "weight_scale" in parameters else quantize_int4_group(_dummy(layer, parameters), _GROUP)

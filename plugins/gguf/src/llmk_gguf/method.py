"""Loads modules of GGUF files that stay packed in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn.quantization import Quantization
from llmk.reference.quantize import quantize_int4_group, quantize_int8_group

_GROUP = 16
"""Inputs of a group of dummy weights: the fewest that a type has."""


class Groups(Quantization):
    """What both formats have in common: the reader presents a module's tensors as the parameters that kernels
    prepare."""

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Refuses a module that the reader left plain."""
        if "weight_scale" not in stored:
            raise CheckpointError(
                f"{module} is stored plain ({', '.join(stored)}), unlike other modules of its GEMM",
                hint='serve the file with [plugin.gguf] weights = "plain"',
            )


class Int8Groups(Groups):
    """``weight`` int8 ``[out, in]``, ``weight_scale`` float32 ``[out, groups]``, and ``weight_zero_point`` like it
    where a module of the GEMM has one."""

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """Quantizes dummy values; others stay as they are."""
        return parameters if "weight_scale" in parameters else quantize_int8_group(parameters["weight"], _GROUP)


class Int4Groups(Groups):
    """``weight_packed`` uint8 ``[out, in / 2]``, ``weight_scale`` float32 ``[out, groups]``, and ``weight_zero_point``
    like it where a module of the GEMM has one."""

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """As the base class says."""
        rows, columns = stored["weight_packed"].shape
        return rows, columns * 2

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """Quantizes dummy values; others stay as they are."""
        return parameters if "weight_scale" in parameters else quantize_int4_group(parameters["weight"], _GROUP)

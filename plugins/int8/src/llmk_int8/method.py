"""Quantizes plain weights to int8 while they load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn.quantization import Quantization
from llmk.reference.quantize import quantize_int8_channel

_WIDE = ("F32", "BF16", "F16")


class Int8(Quantization):
    """Rounds to nearest, symmetrically, with one scale per output channel: the channel's largest weight divided by 127,
    so the error is at most half a scale. Packed projections keep their scales.

    A row-parallel rank uses the largest weight of its input features: its scales are equal or finer.
    """

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Accepts a plain ``weight`` and nothing else."""
        if [*stored] != ["weight"] or stored["weight"].dtype not in _WIDE:
            found = ", ".join(f"{name} ({tensor.dtype})" for name, tensor in stored.items())
            raise CheckpointError(
                f"{module} stores {found}, expected a plain weight to quantize",
                hint="leave out model.quantization, or name a checkpoint that is not quantized",
            )

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` int8 and ``weight_scale`` float32 ``[out, 1]``."""
        return quantize_int8_channel(parameters["weight"])

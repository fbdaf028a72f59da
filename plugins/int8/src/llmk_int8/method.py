"""How plain weights become 8-bit integers while they load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from llmk.api import CheckpointError
from llmk.nn.quantization import Quantization
from llmk.nn.tensor_file import StoredTensor
from llmk.reference.quantize import quantize_int8_channel

_WIDE = ("F32", "BF16", "F16")


class Int8(Quantization):
    """Rounds to nearest, symmetrically, with one scale for each output: an error of at most half a scale, which is the
    output's largest weight over 127. Projections that are packed together keep their scales, since outputs do.

    A process that has some of the input features, under tensor parallelism, takes the largest weight of those: its
    scales are the same or finer.
    """

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """A plain ``weight`` and nothing else."""
        if [*stored] != ["weight"] or stored["weight"].dtype not in _WIDE:
            found = ", ".join(f"{name} ({tensor.dtype})" for name, tensor in stored.items())
            raise CheckpointError(
                f"{module} stores {found}, where a plain weight was to be quantized",
                hint="leave out model.quantization, or name a checkpoint that is not quantized",
            )

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` int8 and ``weight_scale`` float32 ``[out, 1]``."""
        return quantize_int8_channel(parameters["weight"])

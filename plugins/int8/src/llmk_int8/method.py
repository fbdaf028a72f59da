"""Quantizes plain weights to integers while they load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, StoredTensor
from llmk.nn.quantization import Quantization
from llmk_int8.kept import kept, source_of
from llmk_int8.rounding import GROUP, int4_groups, int8_rows

_WIDE = ("F32", "BF16", "F16")


class Plain(Quantization):
    """Reads plain weights alone.

    Attributes:
        source: what identifies their files.
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(checkpoint)
        self.source = source_of(checkpoint)

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Accepts a plain ``weight`` and nothing else."""
        if [*stored] != ["weight"] or stored["weight"].dtype not in _WIDE:
            found = ", ".join(f"{name} ({tensor.dtype})" for name, tensor in stored.items())
            raise CheckpointError(
                f"{module} stores {found}, expected a plain weight to quantize",
                hint="leave out model.quantization, or name a checkpoint that is not quantized",
            )


class Int8(Plain):
    """Rounds to nearest, symmetrically, with one scale per output channel: the channel's largest weight divided by 127,
    so the error is at most half a scale. Packed projections keep their scales.

    A row-parallel rank uses the largest weight of its input features: its scales are equal or finer.
    """

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` int8 and ``weight_scale`` float32 ``[out, 1]``."""
        return kept(layer, parameters["weight"], int8_rows, self.source)


class Int4(Plain):
    """Rounds to nearest, symmetrically, with one scale per group of inputs, as :func:`llmk_int8.rounding.int4_groups`
    says."""

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """As the base class says, with inputs in whole groups."""
        super().check(module, stored)
        if (inputs := stored["weight"].shape[-1]) % GROUP:
            raise CheckpointError(
                f"{module} has {inputs} inputs, which are not in groups of {GROUP}",
                hint='use model.quantization = "int8"',
            )

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight_packed`` uint8 ``[out, in / 2]`` and ``weight_scale`` float32 ``[out, groups]``."""
        if (inputs := parameters["weight"].shape[1]) % GROUP:
            raise CheckpointError(
                f"{layer} has {inputs} inputs on each of several processes, which are not in groups of {GROUP}",
                hint='use model.quantization = "int8", or fewer processes',
            )
        return kept(layer, parameters["weight"], int4_groups, self.source)

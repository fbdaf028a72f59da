"""Quantizes plain weights to int8 while they load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn import Quantization


def rounded(weight: Tensor) -> dict[str, Tensor]:
    """``weight`` int8 and ``weight_scale`` float32 ``[out, 1]`` of a weight ``[out, in]``: rounded to nearest; the
    largest weight of each output becomes 127."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return {"weight": (wide / scale).round().to(torch.int8), "weight_scale": scale}


class Rounded(Quantization):
    """Packed projections keep their scales, because there is one per output."""

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Accepts a plain ``weight`` and nothing else; called before any tensor is read."""
        if [*stored] != ["weight"] or stored["weight"].dtype not in ("F32", "BF16", "F16"):
            found = ", ".join(f"{name} ({tensor.dtype})" for name, tensor in stored.items())
            raise CheckpointError(
                f"{module} stores {found}, expected a plain weight to quantize",
                hint="leave out model.quantization, or name a checkpoint that is not quantized",
            )

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The parameters of the weight format."""
        return rounded(parameters["weight"])

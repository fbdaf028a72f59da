"""Quantizes plain weights to 4 bits while they load: groups of 64 inputs, each with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn import Quantization

GROUP, MOST = 64, 15


def halved(weight: Tensor) -> dict[str, Tensor]:
    """The parameters of the format ``int4_group``: each group's range, extended to zero, is mapped to all 16 values."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
    scale = (high - low) / MOST
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    zero = (-low / scale).round()
    numbers = (groups / scale[..., None] + zero[..., None]).round().clamp(0, MOST).to(torch.uint8).flatten(1)
    packed = numbers[:, 0::2] | (numbers[:, 1::2] << 4)
    return {"weight_packed": packed, "weight_scale": scale, "weight_zero_point": zero.to(torch.uint8)}


class Halved(Quantization):
    """Packed projections keep their scales, because a group is of one output."""

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """A plain weight whose inputs are whole groups."""
        weight = stored.get("weight")
        if len(stored) != 1 or weight is None or weight.dtype not in ("F32", "BF16", "F16"):
            found = ", ".join(f"{name} ({tensor.dtype})" for name, tensor in stored.items())
            raise CheckpointError(f"{module} stores {found}, not a plain weight", hint="leave out model.quantization")
        if len(weight.shape) != 2 or weight.shape[1] % GROUP:
            raise CheckpointError(
                f"{module} stores a weight of {list(weight.shape)}, whose inputs are no multiple of {GROUP}",
                hint="leave out model.quantization",
            )

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The parameters of the weight format."""
        return halved(parameters["weight"])

"""Reads BitNet b1.58: matrices of -1, 0 and 1 with one scale, as transformers packs them.

Four rows that are a quarter of the matrix apart share a byte: row ``i`` of ``weight``, uint8 ``[out / 4, in]``, has row
``i`` of the matrix in its lowest two bits, then rows ``i + out / 4``, ``i + out / 2`` and ``i + 3 * out / 4``, each
number as 0, 1 or 2. ``weight_scale`` is one number. Here the numbers become those of the format ``int4_group``, with a
group per row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, StoredTensor
from llmk.nn import Quantization

from .plover_bitnet_config import BitNetConfig, names, parse

SHARED = 4
"""Rows that share a byte."""
ZERO = 8
"""The nibble of ``int4_group`` that represents zero."""
SCALES = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Follows ``llmk.api.DecodeRows``: nibbles of rows that are in order, of the bytes that four rows share."""

    columns: int
    multiple: int = 0

    def __call__(self, stored: Tensor) -> Tensor:
        """uint8 ``[out, in / 2]``, the even input in the low nibble."""
        shared = stored.view(-1, self.columns)
        rows = torch.cat([shared >> 2 * place & 3 for place in range(SHARED)])
        return _paired(rows + (ZERO - 1))


class BitNet(Quantization):
    """Follows ``llmk.nn.Quantization``."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        """Reads the config."""
        super().__init__(checkpoint)
        self._config = BitNetConfig() if checkpoint is None else parse(checkpoint)

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """Entries of ``modules_to_not_convert`` that name no module."""
        return [entry for entry in self._config.plain if not any(names(entry, module) for module in modules)]

    def present(self, module: str, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
        """``weight``, if it is packed, as ``weight_packed``, with a row for each output."""
        if self._config.reads(module) is None:
            return stored
        return [self._presented(module, each) if _is_packed(module, each) else each for each in stored]

    def _presented(self, module: str, weight: StoredTensor) -> StoredTensor:
        if len(weight.shape) != 2 or weight.shape[1] % 2:
            raise CheckpointError(
                f"{module} has packed weights of the shape {list(weight.shape)}, expected [outputs / {SHARED}, inputs]"
                " with an even number of inputs",
                hint="convert the checkpoint again",
            )
        shared, columns = weight.shape
        shape, decode = (SHARED * shared, columns // 2), Unpacked(columns)
        return StoredTensor(f"{module}.weight_packed", weight.file, "U8", shape, weight.start, weight.stop, decode)

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Accepts packed weights and a scale, and perhaps a bias."""
        scale = stored.get("weight_scale")
        named = {*stored} - {"bias"} == {"weight_packed", "weight_scale"}
        if named and scale is not None and scale.num_elements == 1 and scale.dtype in SCALES:
            return
        found = ", ".join(f"{name} ({each.dtype} {list(each.shape)})" for name, each in sorted(stored.items()))
        raise CheckpointError(
            f"{module} stores {found or 'nothing'}, expected packed weights of BitNet (U8) and one weight_scale",
            hint="if the module is not quantized, add it to modules_to_not_convert in quantization_config",
        )

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """``[out, in]``: two inputs share a byte."""
        rows, pairs = stored["weight_packed"].shape
        return rows, 2 * pairs

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """Gives each row the scale of its projection."""
        if "weight" in parameters:
            return _rounded(layer, parameters["weight"])
        scale = parameters["weight_scale"].flatten()
        if len(scale) != len(rows):
            raise CheckpointError(
                f"{layer} has {len(scale)} scales for {len(rows)} projections", hint="convert the checkpoint again"
            )
        if self._config.divides:
            scale = 1 / scale.float()
        if not scale.isfinite().all():
            raise CheckpointError(
                f"{layer} has a weight_scale that is no number, or 0 where weights are divided by it",
                hint="convert or download the checkpoint again",
            )
        repeats = torch.tensor(rows, device=scale.device)
        return {
            "weight_packed": parameters["weight_packed"].contiguous(),
            "weight_scale": scale.repeat_interleave(repeats).view(-1, 1),
        }


def _is_packed(module: str, tensor: StoredTensor) -> bool:
    """Norms have a ``weight``, too, but not of bytes."""
    return tensor.name == f"{module}.weight" and tensor.dtype == "U8"


def _paired(rows: Tensor) -> Tensor:
    """Two neighbours of a row to a byte, the even one in its low nibble."""
    return rows[:, 0::2] | rows[:, 1::2] << 4


def _rounded(layer: str, weight: Tensor) -> dict[str, Tensor]:
    """Dummy weights in 15 steps for each row."""
    if weight.shape[1] % 2:
        raise CheckpointError(f"{layer} has {weight.shape[1]} inputs, an odd number", hint="serve it without bitnet")
    wide = weight.float()
    scale = wide.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny * 8) / 7
    return {"weight_packed": _paired(((wide / scale).round() + ZERO).to(torch.uint8)), "weight_scale": scale}

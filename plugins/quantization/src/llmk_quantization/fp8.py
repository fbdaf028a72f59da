"""fp8 e4m3 weights: their names and scales in checkpoints, and quantization of plain weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn.quantization import Quantization
from llmk.reference.quantize import quantize_fp8_block, quantize_fp8_channel, quantize_fp8_tensor
from llmk.reference.quantized_weight import FP8_BLOCK
from llmk_quantization.modules import unmatched

_FP8 = "F8_E4M3"
_WIDE = ("F32", "BF16", "F16")
_SCALES = ("weight_scale", "weight_scale_inv")
"""Values are multiplied by either, despite the name ``weight_scale_inv`` (DeepSeek-V3, arXiv:2412.19437)."""
_UNUSED = ("input_scale",)
"""The static activation scale from calibration. It is ignored: kernels compute a scale per row."""


CACHE_SCALES = (
    ("k_scale", "k_proj.k_scale", "k_proj.output_scale"),
    ("v_scale", "v_proj.v_scale", "v_proj.output_scale"),
)
"""As ``Quantization.cache_scales``."""


class Stored(Quantization, ABC):
    """Base of methods that read fp8 weights with their scales."""

    cache_scales = CACHE_SCALES

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """As the base class says."""
        return unmatched(self.checkpoint.quantization, modules) if self.checkpoint else []

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Requires ``weight`` in fp8, one of the scales in a shape of the format, and no unknown tensors."""
        weight = stored.get("weight")
        if weight is None:
            raise bad(module, f"stores {', '.join(sorted(stored))}, but no weight")
        if weight.dtype != _FP8:
            raise of_other_dtype(module, weight.dtype, _FP8)
        if len(weight.shape) != 2:
            raise bad(module, f"has a weight of {list(weight.shape)}, not in two dimensions")
        if unknown := sorted(set(stored) - {"weight", *_SCALES, *_UNUSED}):
            raise bad(module, f"stores {', '.join(unknown)}, which fp8 weights don't have")
        scale = next((stored[name] for name in _SCALES if name in stored), None)
        if scale is None:
            raise bad(module, f"lacks a scale ({' or '.join(_SCALES)})")
        check_scale(module, scale, self._shapes(*weight.shape))

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` and ``weight_scale``."""
        weight = parameters["weight"]
        if weight.dtype != torch.float8_e4m3fn:
            return self._quantized(weight)  # dummy values
        scale = next(parameters[name] for name in _SCALES if name in parameters)
        return {"weight": weight, "weight_scale": self._packed(layer, scale.float(), rows)}

    @abstractmethod
    def _shapes(self, rows: int, columns: int) -> list[tuple[int, ...]]:
        """Shapes that the scale of a weight of ``rows`` and ``columns`` may have."""

    @abstractmethod
    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        """A plain weight's parameters in the format."""

    @abstractmethod
    def _packed(self, layer: str, scale: Tensor, rows: Sequence[int]) -> Tensor:
        """The format's ``weight_scale``, from the concatenated scales of projections with ``rows`` rows each."""


class StoredChannels(Stored):
    """A scale per output channel, or one per projection, which is repeated for its output channels, so that packed
    projections keep their scales."""

    def _shapes(self, rows: int, columns: int) -> list[tuple[int, ...]]:
        return [(), (1,), (1, 1), (rows,), (rows, 1)]

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return quantize_fp8_channel(weight)

    def _packed(self, layer: str, scale: Tensor, rows: Sequence[int]) -> Tensor:
        scale = scale.flatten()
        if scale.numel() == sum(rows):
            return scale[:, None]
        if scale.numel() != len(rows):
            raise bad(layer, f"mixes scales per output and per matrix: {scale.numel()} for {list(rows)} rows")
        return scale.repeat_interleave(torch.tensor(rows, device=scale.device))[:, None]


class StoredBlocks(Stored):
    """A scale per block of 128x128; packed projections must consist of whole blocks."""

    def _shapes(self, rows: int, columns: int) -> list[tuple[int, ...]]:
        return [(-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))]

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return quantize_fp8_block(weight)

    def _packed(self, layer: str, scale: Tensor, rows: Sequence[int]) -> Tensor:
        if any(count % FP8_BLOCK for count in rows[:-1]):
            raise bad(layer, f"packs {list(rows)} rows, which are not all whole blocks of {FP8_BLOCK}")
        return scale


class Online(Quantization):
    """Base of methods that quantize plain weights."""

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Accepts a plain ``weight`` and nothing else."""
        found = [f"{name} ({tensor.dtype})" for name, tensor in stored.items()]
        if [*stored] != ["weight"] or stored["weight"].dtype not in _WIDE:
            raise bad(module, f"stores {', '.join(found)}, expected a plain weight to quantize")


class OnlineChannels(Online):
    """A scale per output channel."""

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` and ``weight_scale``."""
        return quantize_fp8_channel(parameters["weight"])


class OnlineTensors(Online):
    """One scale per projection."""

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` and ``weight_scale``, the latter per output channel."""
        parts = [quantize_fp8_tensor(part) for part in parameters["weight"].split(list(rows))]
        scales = [part["weight_scale"].expand(count, 1) for part, count in zip(parts, rows, strict=True)]
        # Concatenates fp8 as bytes: not every torch device can concatenate fp8 tensors.
        values = torch.cat([part["weight"].view(torch.uint8) for part in parts])
        return {"weight": values.view(torch.float8_e4m3fn), "weight_scale": torch.cat(scales)}


class OnlineBlocks(Online):
    """A scale per block of 128x128 of the packed weight."""

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """``weight`` and ``weight_scale``."""
        return quantize_fp8_block(parameters["weight"])


def of_other_dtype(module: str, found: str, wanted: str) -> CheckpointError:
    """The error for a module whose weight is not in the format that ``quantization_config`` says."""
    return CheckpointError(
        f"{module} is stored as {found}, not as {wanted}, as quantization_config in config.json says",
        hint="if its weight is plain, list it there, in modules_to_not_convert (fp8) or ignore (compressed-tensors)",
    )


def check_scale(module: str, scale: StoredTensor, shapes: Sequence[tuple[int, ...]]) -> None:
    """Requires a scale in a wide dtype and one of ``shapes``."""
    if scale.dtype not in _WIDE or scale.shape not in shapes:
        wanted = [list(shape) for shape in shapes]
        raise bad(module, f"has a scale of {scale.dtype} {list(scale.shape)}, not of any of {wanted}")


def bad(name: str, what: str) -> CheckpointError:
    """The error for stored tensors that don't fit the format."""
    hint = "check that quantization_config in config.json belongs to these weights, and that the download is complete"
    return CheckpointError(f"{name} {what}", hint=hint)

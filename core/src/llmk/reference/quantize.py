"""Quantizes weights by rounding to nearest, into the parameters that ``llmk.reference.quantized_weight`` prepares. For
tests: it is not a quantization method that users can choose."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.quantized_weight import FP8_BLOCK

_FP8 = torch.float8_e4m3fn
_FP8_MAX = torch.finfo(_FP8).max


def quantize_int8_channel(weight: Tensor) -> dict[str, Tensor]:
    """Symmetric 8-bit integers, -127 to 127, with one scale per row of ``weight`` (``[out, in]``)."""
    wide = weight.float()
    scale = _scale(wide.abs().amax(dim=1, keepdim=True), 127)
    return {"weight": (wide / scale).round().to(torch.int8), "weight_scale": scale}


def quantize_int8_group(weight: Tensor, group_size: int = 32) -> dict[str, Tensor]:
    """Symmetric 8-bit integers, -127 to 127, with one scale per ``group_size`` inputs of ``weight`` (``[out, in]``)."""
    groups = weight.float().view(weight.shape[0], -1, group_size)
    scale = _scale(groups.abs().amax(dim=-1), 127)
    values = (groups / scale[..., None]).round().to(torch.int8).flatten(1)
    return {"weight": values, "weight_scale": scale}


def quantize_int4_group(weight: Tensor, group_size: int = 128, *, symmetric: bool = True) -> dict[str, Tensor]:
    """4-bit integers, 0 to 15, with one scale per ``group_size`` inputs of ``weight`` (``[out, in]``), packed two to a
    byte.

    Symmetric: 8 represents zero. Otherwise, each group's range, extended to include zero, is mapped to all 16 values.
    """
    groups = weight.float().view(weight.shape[0], -1, group_size)
    if symmetric:
        scale = _scale(groups.abs().amax(dim=-1), 7)
        zero = torch.full_like(scale, 8)
    else:
        low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
        scale = _scale(high - low, 15)
        zero = (-low / scale).round()
    values = (groups / scale[..., None] + zero[..., None]).round().clamp(0, 15).to(torch.uint8).flatten(1)
    parameters = {"weight_packed": values[:, 0::2] | (values[:, 1::2] << 4), "weight_scale": scale}
    return parameters if symmetric else {**parameters, "weight_zero_point": zero.to(torch.uint8)}


def quantize_fp8_tensor(weight: Tensor) -> dict[str, Tensor]:
    """fp8 e4m3 with one scale for all of ``weight`` (``[out, in]``)."""
    wide = weight.float()
    scale = _scale(wide.abs().amax(), _FP8_MAX)
    return {"weight": (wide / scale).to(_FP8), "weight_scale": scale}


def quantize_fp8_channel(weight: Tensor) -> dict[str, Tensor]:
    """fp8 e4m3 with one scale per row of ``weight`` (``[out, in]``)."""
    wide = weight.float()
    scale = _scale(wide.abs().amax(dim=1, keepdim=True), _FP8_MAX)
    return {"weight": (wide / scale).to(_FP8), "weight_scale": scale}


def quantize_fp8_block(weight: Tensor) -> dict[str, Tensor]:
    """fp8 e4m3 with one scale per block of 128x128 of ``weight`` (``[out, in]``, any sizes: the last blocks may be
    partial)."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    blocks = padded.view(-(-rows // FP8_BLOCK), FP8_BLOCK, -(-columns // FP8_BLOCK), FP8_BLOCK)
    scale = _scale(blocks.abs().amax(dim=(1, 3)), _FP8_MAX)
    values = (blocks / scale[:, None, :, None]).view(padded.shape)[:rows, :columns]
    return {"weight": values.to(_FP8).contiguous(), "weight_scale": scale}


def _scale(largest: Tensor, limit: float) -> Tensor:
    """The scale that maps ``largest`` to ``limit``; 1 if all values are zero."""
    return torch.where(largest > 0, largest / limit, 1.0)

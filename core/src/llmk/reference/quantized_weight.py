"""Quantized weights, and how to dequantize them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FP8_BLOCK = 128
"""Rows and columns that share a scale in the format ``fp8_block``."""


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """int8 or fp8 e4m3 values (``[out, in]``) with a scale per ``block`` of rows and columns.

    ``scale`` is float32 ``[ceil(out / block[0]), ceil(in / block[1])]``.
    """

    values: Tensor
    scale: Tensor
    block: tuple[int, int]

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]`` in ``dtype``, rounded once."""
        scale = self.scale
        for dim in (0, 1):
            if scale.shape[dim] > 1:
                scale = scale.repeat_interleave(self.block[dim], dim).narrow(dim, 0, self.values.shape[dim])
        return (self.values.float() * scale).to(dtype)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`."""
        scale = self.scale if self.scale.shape[0] == 1 else self.scale[index // self.block[0]]
        return ScaledWeight(self.values[index], scale, (1, self.block[1])).dequantize(dtype)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """4-bit numbers, two to a byte, with a scale and a zero point per group of inputs.

    ``packed`` is uint8 ``[out, in / 2]``, the even input in the low nibble; ``scale`` float32 ``[out, groups]``;
    ``zero`` float32 ``[out, groups]``, the value that represents zero, which need not be whole (8 if the format is
    symmetric). With ``order``, int64 ``[in]``, the numbers of a row belong to these inputs, so that the inputs of a
    group need not be neighbours; ``None``: they are in order.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor
    order: Tensor | None = None

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]`` in ``dtype``, rounded once."""
        nibbles = torch.stack((self.packed & 15, self.packed >> 4), dim=-1)
        groups = nibbles.view(*self.scale.shape, -1).float()
        weight = ((groups - self.zero[..., None]) * self.scale[..., None]).view(nibbles.shape[0], -1).to(dtype)
        return in_order(weight, self.order)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`."""
        return PackedWeight(self.packed[index], self.scale[index], self.zero[index], self.order).dequantize(dtype)


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """8-bit numbers with a scale and a zero point per group of consecutive inputs, groups of any equal size.

    ``values`` is int8 ``[out, in]``; ``scale`` float32 ``[out, groups]``; ``zero`` float32 ``[out, groups]``, the value
    that represents zero, which need not be whole, or ``None``: 0. ``order`` is as in :class:`PackedWeight`.
    """

    values: Tensor
    scale: Tensor
    zero: Tensor | None
    order: Tensor | None = None

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]`` in ``dtype``, rounded once."""
        groups = self.values.view(*self.scale.shape, -1).float()
        if self.zero is not None:
            groups = groups - self.zero[..., None]
        return in_order((groups * self.scale[..., None]).view(self.values.shape).to(dtype), self.order)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`."""
        zero = None if self.zero is None else self.zero[index]
        return GroupedWeight(self.values[index], self.scale[index], zero, self.order).dequantize(dtype)


def in_order(weight: Tensor, order: Tensor | None) -> Tensor:
    """``weight`` (``[out, in]``), whose columns belong to the inputs ``order``, with its columns in the order of
    inputs."""
    if order is None:
        return weight
    return torch.empty_like(weight).index_copy_(1, order, weight)


def prepare_int8_channel(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``weight`` int8 ``[out, in]``, ``weight_scale`` ``[out]`` or ``[out, 1]``."""
    return _per_channel(parameters)


def prepare_int4_group(parameters: Mapping[str, Tensor]) -> PackedWeight:
    """``weight_packed`` uint8 ``[out, in / 2]``, ``weight_scale`` ``[out, groups]``, optionally ``weight_zero_point``
    ``[out, groups]``, and optionally ``weight_order`` ``[in]``, the input of each column."""
    scale = parameters["weight_scale"].float()
    zero = parameters.get("weight_zero_point")
    return PackedWeight(
        parameters["weight_packed"],
        scale,
        torch.full_like(scale, 8.0) if zero is None else zero.float(),
        parameters.get("weight_order"),
    )


def prepare_int8_group(parameters: Mapping[str, Tensor]) -> GroupedWeight:
    """``weight`` int8 ``[out, in]``, ``weight_scale`` ``[out, groups]``, optionally ``weight_zero_point``
    ``[out, groups]``, and optionally ``weight_order`` ``[in]``, the input of each column."""
    zero = parameters.get("weight_zero_point")
    scale = parameters["weight_scale"].float()
    return GroupedWeight(
        parameters["weight"], scale, None if zero is None else zero.float(), parameters.get("weight_order")
    )


def prepare_fp8_tensor(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``weight`` fp8 e4m3 ``[out, in]``, ``weight_scale`` of one element."""
    weight = parameters["weight"]
    return ScaledWeight(weight, parameters["weight_scale"].float().view(1, 1), (weight.shape[0], weight.shape[1]))


def prepare_fp8_tensor_by_channel(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """The parameters of :func:`prepare_fp8_tensor` as those of :func:`prepare_fp8_channel`: every output channel gets
    the one scale."""
    weight = prepare_fp8_tensor(parameters)
    scale = weight.scale.expand(weight.values.shape[0], 1).contiguous()
    return prepare_fp8_channel({"weight": weight.values, "weight_scale": scale})


def prepare_fp8_channel(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``weight`` fp8 e4m3 ``[out, in]``, ``weight_scale`` ``[out]`` or ``[out, 1]``."""
    return _per_channel(parameters)


def prepare_fp8_block(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    """``weight`` fp8 e4m3 ``[out, in]``, ``weight_scale`` ``[ceil(out / 128), ceil(in / 128)]``, by which values are
    multiplied."""
    return ScaledWeight(parameters["weight"], parameters["weight_scale"].float(), (FP8_BLOCK, FP8_BLOCK))


def _per_channel(parameters: Mapping[str, Tensor]) -> ScaledWeight:
    weight = parameters["weight"]
    return ScaledWeight(weight, parameters["weight_scale"].float().view(-1, 1), (1, weight.shape[1]))

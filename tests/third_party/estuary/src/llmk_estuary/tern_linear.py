"""A GEMM of 4-bit weights that lie output by output: each byte has the numbers of two outputs for one input.

Widening a slab of outputs then reads rows that lie side by side, and the slab comes out as the GEMM takes it: inputs by
outputs. Arithmetic is in float32, rounded once, in any dtype of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SLAB = 512
"""Outputs that are widened at a time, an even number: so much of a weight exists in float32."""

_CENTRE = 8.0
"""The number that stands for zero where a weight has no zero points."""


@dataclass(frozen=True, slots=True)
class SlabWeight:
    """4-bit numbers with a scale and a zero point per group of inputs, of ``out_features`` outputs.

    ``packed`` is uint8 ``[in, ceil(out / 2)]``, the even output in the low nibble; ``scale`` float32 ``[groups, out]``;
    ``zero`` float32 ``[groups, out]``, or ``None``: 8. ``order``, int64 ``[in]``, are the inputs that the rows of
    ``packed`` belong to; ``None``: they are in order.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    order: Tensor | None
    out_features: int

    def slab(self, start: int, stop: int) -> Tensor:
        """The weight of outputs ``start``, which is even, to ``stop - 1``: float32 ``[in, stop - start]``, inputs in
        the order of ``packed``."""
        packed = self.packed[:, start // 2 : (stop + 1) // 2]
        numbers = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)[:, : stop - start]
        zero = None if self.zero is None else self.zero[:, start:stop]
        return _widened(numbers, self.scale[:, start:stop], zero)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`."""
        pairs = self.packed.index_select(1, index // 2)
        numbers = torch.where(index % 2 == 1, pairs >> 4, pairs & 15)
        zero = None if self.zero is None else self.zero.index_select(1, index)
        weight = _widened(numbers, self.scale.index_select(1, index), zero).to(dtype)
        if self.order is not None:
            weight = torch.empty_like(weight).index_copy_(0, self.order, weight)
        return weight.T.contiguous()


def prepare(parameters: Mapping[str, Tensor]) -> SlabWeight:
    """The parameters of ``int4_group``: ``weight_packed`` uint8 ``[out, in / 2]``, ``weight_scale`` ``[out, groups]``,
    optionally ``weight_zero_point`` ``[out, groups]`` and ``weight_order`` ``[in]``."""
    packed = parameters["weight_packed"]
    out_features, half = packed.shape
    by_input = packed.new_empty(2 * half, (out_features + 1) // 2)
    # One nibble of the inputs at a time: even inputs, then odd ones.
    for odd in (0, 1):
        numbers = (packed >> 4 if odd else packed & 15).T
        by_input[odd::2] = numbers[:, 0::2]
        by_input[odd::2, : out_features // 2] |= numbers[:, 1::2] << 4
    zero = parameters.get("weight_zero_point")
    scale = parameters["weight_scale"].reshape(out_features, -1)
    return SlabWeight(
        by_input,
        scale.T.float().contiguous(),
        None if zero is None else zero.reshape(scale.shape).T.float().contiguous(),
        parameters.get("weight_order"),
        out_features,
    )


def linear(x: Tensor, weight: SlabWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype, slab by slab of outputs."""
    wide = x.float()
    if weight.order is not None:
        wide = wide.index_select(1, weight.order)
    out = x.new_empty(x.shape[0], weight.out_features)
    for start in range(0, weight.out_features, SLAB):
        stop = min(start + SLAB, weight.out_features)
        slab = weight.slab(start, stop)
        result = wide @ slab if bias is None else torch.addmm(bias[start:stop].float(), wide, slab)
        out[:, start:stop] = result
    return out


def _widened(numbers: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """``scale * (numbers - zero)``: float32 of uint8 ``[in, outputs]`` and parameters ``[groups, outputs]``."""
    groups = numbers.float().view(scale.shape[0], -1, scale.shape[1])
    groups = groups - (_CENTRE if zero is None else zero[:, None])
    return (groups * scale[:, None]).view(numbers.shape)

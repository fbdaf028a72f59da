"""A linear kernel that multiplies strips of outputs, with plain weights or int8 weights with a scale per output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

STRIP = 48


@dataclass(frozen=True, slots=True)
class Strips:
    """Weights ``[in, STRIP]`` of each strip of outputs, of which the last may be narrower; and the scales, float32
    ``[out]``, of 8-bit numbers."""

    weights: tuple[Tensor, ...]
    scale: Tensor | None


def prepare(parameters: Mapping[str, Tensor]) -> Strips:
    """Cuts the weight; the stored tensors stay as they are."""
    scale = parameters.get("weight_scale")
    strips = parameters["weight"].split(STRIP, dim=0)
    return Strips(tuple(strip.T.contiguous() for strip in strips), None if scale is None else scale.float().flatten())


def linear(x: Tensor, weight: Strips, bias: Tensor | None) -> Tensor:
    """``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype, with sums in float32."""
    wide = x.float()
    out = torch.cat([wide @ strip.float() for strip in weight.weights], dim=1)
    if weight.scale is not None:
        out *= weight.scale
    if bias is not None:
        out += bias
    return out.to(x.dtype)

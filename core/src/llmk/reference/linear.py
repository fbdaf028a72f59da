"""Linear layers: the plain product, and products with quantized weights that are dequantized for every call."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.quantized_weight import PackedWeight, ScaledWeight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype; ``weight`` is ``[out, in]``,
    ``bias`` ``[out]``.

    torch picks its kernel by the number of rows, so a row agrees with the same row in another batch to rounding.
    """
    return F.linear(x, weight, bias)


def per_head_product(x: Tensor, weight: Tensor) -> Tensor:
    """``x[:, h] @ weight[h]`` for every head: ``[tokens, heads, in]`` to ``[tokens, heads, out]`` in ``x``'s dtype;
    ``weight`` is ``[heads, in, out]``."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def prepare_plain(parameters: Mapping[str, Tensor]) -> Tensor:
    """The weight as it is: ``parameters["weight"]``, ``[out, in]``."""
    return parameters["weight"]


def linear_dequantized(x: Tensor, weight: ScaledWeight | PackedWeight, bias: Tensor | None) -> Tensor:
    """:func:`linear` with the weight dequantized to ``x``'s dtype first."""
    return F.linear(x, weight.dequantize(x.dtype), bias)

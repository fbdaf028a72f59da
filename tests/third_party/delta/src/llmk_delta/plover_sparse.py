"""A GEMM that reads only the weights of inputs that are not 0, for models whose activations mostly are.

Behind a ReLU or its square, some nine of ten inputs of a down projection are 0 (arXiv:2310.04564), so that nine tenths
of its weights need not be read. That holds for few tokens: with many, some token has a value for nearly every input.
Weights are int8 with a scale per output, and lie input by input here, so that those of an input are read in one piece.

Inputs are first divided by a power of two near the largest of their row, so that sums neither overflow nor vanish
before they are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 512
"""Inputs whose weights are widened at a time."""
WIDEST = 120
"""Largest power of two that rows are divided by, and least (negated): its inverse is a float32, too."""


@dataclass(frozen=True, slots=True)
class InputMajor:
    """``columns`` is int8 ``[in, out]``, ``scale`` float32 ``[out]``. Follows ``llmk.api.LooksUp``."""

    columns: Tensor
    scale: Tensor

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The dequantized weights of the outputs ``index``."""
        values = self.columns.index_select(1, index).T.float()
        return (values * self.scale[index, None]).to(dtype, memory_format=torch.contiguous_format)


def prepare(parameters: Mapping[str, Tensor]) -> InputMajor:
    """Transposes ``weight``, int8 ``[out, in]``; ``weight_scale`` is ``[out]`` or ``[out, 1]``."""
    scale = parameters["weight_scale"].flatten().float()
    return InputMajor(parameters["weight"].T.contiguous(), scale)


def sparse_linear(x: Tensor, weight: InputMajor, bias: Tensor | None) -> Tensor:
    """``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype."""
    exponents = _exponents(x)
    live = (x != 0).any(dim=0).nonzero().squeeze(1)
    inputs = x.index_select(1, live).float() * _power(-exponents)
    sums = inputs.new_zeros(len(x), len(weight.scale))
    for start in range(0, len(live), TILE):
        some = live[start : start + TILE]
        sums.addmm_(inputs[:, start : start + TILE], weight.columns.index_select(0, some).float())
    # A sum, its scale and its power may each be so large that only the product of all three is a float32.
    out = sums.double().mul_(weight.scale).mul_(_power(exponents))
    if bias is not None:
        out.add_(bias)
    return out.to(x.dtype)


def _exponents(x: Tensor) -> Tensor:
    """The exponent of the largest input of each row, ``[tokens, 1]``."""
    peaks = x.abs().amax(dim=1, keepdim=True).float()
    return torch.frexp(peaks).exponent.clamp_(-WIDEST, WIDEST)


def _power(exponents: Tensor) -> Tensor:
    """Two to the power of these."""
    return torch.exp2(exponents.float())

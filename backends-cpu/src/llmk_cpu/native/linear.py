"""GEMMs with weights in the dtype of the activations, in the layout of checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight
from llmk_cpu.native.library import Kernel, library
from llmk_cpu.native.tensors import CODES, rows_of

_SIGNATURE = "pipipipiiid"
_linear = library().function("linear", _SIGNATURE)
_linear_many = library().function("linear_many", _SIGNATURE)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As :func:`llmk.reference.linear.linear`. A row's result is bit-identical in any batch."""
    return _multiply(_linear, x, weight, bias)


def linear_many(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`linear` in another order, which is faster for many rows."""
    return _multiply(_linear_many, x, weight, bias)


def linear_converted(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """:func:`linear` with the weight first dequantized to ``x``'s dtype."""
    return linear(x, weight.dequantize(x.dtype), bias)


def _multiply(kernel: Kernel, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = rows_of(x)
    count, size = rows.shape
    outputs = weight.shape[0]
    out = torch.empty((count, outputs), dtype=x.dtype)
    kernel(
        out.data_ptr(), outputs, rows.data_ptr(), rows.stride(0), weight.data_ptr(), weight.stride(0),
        None if bias is None else bias.data_ptr(), count, outputs, size, CODES[x.dtype],
    )  # fmt: skip
    return out

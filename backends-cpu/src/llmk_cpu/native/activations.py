"""Gated activations."""

from __future__ import annotations

from math import inf
from typing import Unpack

import torch
from torch import Tensor

from llmk.reference.activations import GatedOptions
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, rows_of

_SILU, _GELU, _GELU_TANH = range(3)
_gate = library().function("gate", "ppiiiddfffd")


def silu_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """As :func:`llmk.reference.activations.silu_and_mul`."""
    return _gated(x, _SILU, options)


def gelu_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """As :func:`llmk.reference.activations.gelu_and_mul`."""
    return _gated(x, _GELU, options)


def gelu_tanh_and_mul(x: Tensor, **options: Unpack[GatedOptions]) -> Tensor:
    """As :func:`llmk.reference.activations.gelu_tanh_and_mul`."""
    return _gated(x, _GELU_TANH, options)


def _gated(x: Tensor, activation: int, options: GatedOptions) -> Tensor:
    rows = rows_of(x)
    size = rows.shape[1] // 2
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype)
    alpha, limit, up_offset = 1.0, inf, 0.0
    if options:
        alpha, up_offset = options.get("activation_alpha", alpha), options.get("up_offset", up_offset)
        given = options.get("activation_limit")
        limit = inf if given is None else given
    _gate(
        out.data_ptr(), rows.data_ptr(), rows.stride(0), rows.shape[0], size, activation, bool(options), alpha, limit,
        up_offset, CODES[x.dtype],
    )  # fmt: skip
    return out

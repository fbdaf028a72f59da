"""Norms."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from llmk.reference.norms import AddNormOptions, NormOptions
from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, rows_of

_library = library()
_rms_norm = _library.function("rms_norm", "pipipiiffd")
_add_rms_norm = _library.function("add_rms_norm", "pppipipiifffd")
_rms_norm_add = _library.function("rms_norm_add", "ppipipiiffd")
_sandwich_norm = _library.function("sandwich_norm", "pppipippiiffd")


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, norm_offset: float = 0.0) -> Tensor:
    """As :func:`llmk.reference.norms.rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype)
    rows = rows_of(x)
    count, size = rows.shape
    _rms_norm(
        out.data_ptr(), size, rows.data_ptr(), rows.stride(0), weight.data_ptr(), count, size, eps, norm_offset,
        CODES[x.dtype],
    )  # fmt: skip
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, **options: Unpack[AddNormOptions]
) -> tuple[Tensor, Tensor]:
    """As the op that :func:`llmk.reference.norms.make_add_rms_norm` builds."""
    out, total = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
    rows, others = rows_of(x), rows_of(residual)
    offset, multiplier = 0.0, 1.0
    if options:
        offset, multiplier = options.get("norm_offset", offset), options.get("residual_multiplier", multiplier)
    _add_rms_norm(
        out.data_ptr(), total.data_ptr(), rows.data_ptr(), rows.stride(0), others.data_ptr(), others.stride(0),
        weight.data_ptr(), *rows.shape, eps, offset, multiplier, CODES[x.dtype],
    )  # fmt: skip
    return out, total


def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float, **options: Unpack[NormOptions]) -> Tensor:
    """As the op that :func:`llmk.reference.norms.make_rms_norm_add` builds."""
    out = torch.empty(x.shape, dtype=x.dtype)
    rows, others = rows_of(x), rows_of(residual)
    _rms_norm_add(
        out.data_ptr(), rows.data_ptr(), rows.stride(0), others.data_ptr(), others.stride(0), weight.data_ptr(),
        *rows.shape, eps, options.get("norm_offset", 0.0), CODES[x.dtype],
    )  # fmt: skip
    return out


def sandwich_norm(
    x: Tensor, residual: Tensor, post_weight: Tensor, pre_weight: Tensor, eps: float, **options: Unpack[NormOptions]
) -> tuple[Tensor, Tensor]:
    """As the op that :func:`llmk.reference.norms.make_sandwich_norm` builds."""
    out, total = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
    rows, others = rows_of(x), rows_of(residual)
    _sandwich_norm(
        out.data_ptr(), total.data_ptr(), rows.data_ptr(), rows.stride(0), others.data_ptr(), others.stride(0),
        post_weight.data_ptr(), pre_weight.data_ptr(), *rows.shape, eps, options.get("norm_offset", 0.0),
        CODES[x.dtype],
    )  # fmt: skip
    return out, total

"""Norms."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk_cpu.native.library import library
from llmk_cpu.native.tensors import CODES, rows_of

_rms_norm = library().function("rms_norm", "pipipiiffd")


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

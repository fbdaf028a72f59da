"""Token embedding."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def embedding_kernel(ids, weight, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, SCALE: tl.constexpr):
    """``out[i] = weight[ids[i]] * SCALE``, rows of ``SIZE``, contiguous; each program copies part of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    id = tl.load(ids + row).to(tl.int64)
    value = tl.load(weight + id * SIZE + column, column < SIZE)
    if SCALE != 1.0:
        value = (value.to(tl.float32) * SCALE).to(out.dtype.element_ty)
    tl.store(out + row * SIZE + column, value, column < SIZE)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """As :func:`llmk.reference.embedding.embedding`; ids out of range are not checked."""
    return _embedding(ids, weight, 1.0)


def scaled_embedding(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    """See :func:`llmk.reference.embedding.make_scaled_embedding`; ids out of range are not checked."""
    return _embedding(ids, weight, _rounded(scale, weight.dtype))


@cache
def _rounded(scale: float, dtype: torch.dtype) -> float:
    return torch.tensor(scale, dtype=dtype).item()


def _embedding(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    ids, size = ids.contiguous(), weight.shape[1]
    out = weight.new_empty(ids.shape[0], size)
    block = min(_BLOCK, triton.next_power_of_2(size))
    if ids.shape[0]:
        embedding_kernel[(ids.shape[0], triton.cdiv(size, block))](ids, weight.contiguous(), out, size, block, scale)
    return out

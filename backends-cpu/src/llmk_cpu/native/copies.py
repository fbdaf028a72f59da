"""Torch's operators that only copy, as calls of native kernels, for steps that are replayed: a call of torch costs tens
of microseconds, where the whole step of a small model takes a few milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from llmk_cpu.native.library import Kernel, library

Calls = list[tuple[Kernel, tuple[Any, ...]]]
"""Kernels and their arguments."""

_take_rows = library().function("take_rows", "pppiii")
_gather = library().function("gather", "ppipiiii")
_copy_rows = library().function("copy_rows", "pipiii")


def native_copy(func: Any, args: Sequence[Any], found: Any) -> Calls | None:
    """Calls that write what ``func`` computes of ``args`` into the tensor ``found``; ``None`` where no kernel does."""
    copies = _COPIES.get(func)
    return None if copies is None or found.is_complex() else copies(found, *args)


def _embedding(found: Tensor, weight: Tensor, ids: Tensor, *options: object) -> Calls | None:
    if not (_is_plain(found, weight, ids) and ids.dtype is torch.int64):
        return None
    size = weight.shape[1] * weight.itemsize
    pointers = (found.data_ptr(), weight.data_ptr(), ids.data_ptr())
    return [(_take_rows, (*pointers, ids.numel(), len(weight), size))]


def _gathered(found: Tensor, x: Tensor, dim: int, columns: Tensor) -> Calls | None:
    if not (x.dim() == 2 and dim in (1, -1) and x.stride(1) == 1 and _is_plain(found, columns)):
        return None
    if x.itemsize not in (2, 4, 8):
        return None
    pointers = (found.data_ptr(), x.data_ptr(), x.stride(0), columns.data_ptr())
    return [(_gather, (*pointers, *columns.shape, x.shape[1], x.itemsize))]


def _concatenated(found: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Calls | None:
    if not _is_plain(found, *tensors) or any(each.dtype is not found.dtype for each in tensors):
        return None
    rows = math.prod(found.shape[: dim % found.dim()])
    stride = found.numel() * found.itemsize // max(rows, 1)
    calls, at = Calls(), found.data_ptr()
    for each in tensors:
        size = each.numel() * each.itemsize // max(rows, 1)
        calls.append((_copy_rows, (at, stride, each.data_ptr(), size, rows, size)))
        at += size
    return calls


def _is_plain(*tensors: Tensor) -> bool:
    return all(each.is_contiguous() and not each.is_mkldnn for each in tensors)


_COPIES: dict[Any, Callable[..., Calls | None]] = {
    torch.ops.aten.embedding.default: _embedding,
    torch.ops.aten.gather.default: _gathered,
    torch.ops.aten.cat.default: _concatenated,
}

"""Tensors of zeros that cost nothing until they are used, where the operating system can make them so."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

from llmk.api import NotEnoughMemory
from llmk.planning.memory import gib

_LARGE = 1 << 21
"""Bytes of the smallest tensor that is worth pages of its own."""


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of ``shape`` on ``device``. A large tensor on the host is made of pages that the operating system fills
    with zeros when they are first used: a cache of many GiB is there at once, and takes the memory that requests have
    needed so far. Pages are huge where the system has such, so that kernels seldom wait for an address to be
    translated. Other devices fill theirs now.

    Raises:
        NotEnoughMemory: where the operating system promises no more memory to this process.
    """
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _LARGE:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise NotEnoughMemory(
            f"the operating system does not give this process another {gib(size)}: {error}",
            hint="lower cache.memory_gib or cache.num_blocks, or raise the limit (ulimit -v, vm.overcommit_memory)",
        ) from error
    with suppress(AttributeError, OSError):  # a system that has none
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))

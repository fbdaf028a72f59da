"""Memory for packed weights: in huge pages where the operating system has them, so that threads that read whole weights
seldom wait for an address to be translated."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

_CHUNK = 32 << 20
"""Bytes of a chunk: most weights are smaller than a few huge pages."""

_LINE = 64
"""Bytes of a cache line, of which addresses are multiples."""


class Pages:
    """Takes chunks of memory, and divides them among tensors, which keep their chunk."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor whose values are not set. Raises ``OSError`` where there is no more memory."""
        size = prod(shape) * dtype.itemsize
        whole = -(-size // _LINE) * _LINE
        if whole >= _CHUNK:
            memory = _chunk(whole)
        else:
            with self._lock:
                if whole > len(self._left):
                    self._left = _chunk(_CHUNK)
                memory, self._left = self._left[:whole], self._left[whole:]
        return memory[:size].view(dtype).view(tuple(shape))


def _chunk(size: int) -> Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a system that has none
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


PAGES = Pages()
"""Those of this process."""

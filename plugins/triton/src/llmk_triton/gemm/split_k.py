"""Split-K: several programs compute parts of a tile's sum over K; the last to finish adds these in a fixed order."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

COUNTERS = 1 << 16
"""Most output tiles with split-K."""


@cache
def counters(device: torch.device) -> Tensor:
    """Counters of finished splits, one per tile; zero while no kernel runs. All launches on a device share them, so
    they must be on one stream."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@triton.jit
def store_part(acc, partial):
    """Stores a split's partial sums at ``partial``."""
    place = tl.arange(0, acc.shape[0])[:, None] * acc.shape[1] + tl.arange(0, acc.shape[1])[None, :]
    tl.store(partial + place, acc)


@triton.jit
def is_last(arrived, SPLITS: tl.constexpr):
    """Counts a split whose partial sums are stored; whether it is the last of its tile, which also resets the
    counter."""
    # All of the program's stores must be visible before its counter increment.
    tl.debug_barrier()
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS - 1
    tl.store(arrived, 0, last)
    return last


@triton.jit
def sum_of_splits(like, partial, SPLITS: tl.constexpr):
    """The sum of the partial sums of all splits at ``partial``, in the order of the splits; a tile of ``like``'s
    shape."""
    place = tl.arange(0, like.shape[0])[:, None] * like.shape[1] + tl.arange(0, like.shape[1])[None, :]
    acc = tl.zeros_like(like)
    for split in tl.static_range(SPLITS):
        # Other programs wrote these, so they must be loaded from L2, not from this multiprocessor's L1.
        acc += tl.load(partial + split * like.numel + place, cache_modifier=".cg")
    return acc

"""Default sizes of the engine by a GPU's memory. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.api import Default, PlatformFacts

_GIB = 1 << 30

_SIZES = ((64 * _GIB, 1024, 8192, 0.95), (32 * _GIB, 256, 4096, 0.92), (0, 128, 2048, 0.9))
"""(least memory, concurrent requests, tokens per step, cache share). Larger GPUs need more requests and tokens to be
busy. The last is the cache's share of the memory that weights and the largest step leave: the rest is for memory that
torch does not allocate, or only after the cache (graphs, library workspaces, NCCL's buffers), which is about the same
on any GPU."""


def advise(platform: PlatformFacts) -> Iterator[Default]:
    """Sizes of a step, and the cache's share of the remaining memory; none if the memory is unknown."""
    if not platform.memory_bytes:
        return
    seqs, tokens, share = next(sizes for least, *sizes in _SIZES if platform.memory_bytes >= least)
    why = f"{platform.memory_bytes / _GIB:.0f} GiB of {platform.device_name or platform.label}"
    yield Default("scheduler.max_num_seqs", seqs, why)
    yield Default("scheduler.max_num_batched_tokens", tokens, why)
    yield Default("cache.memory_share", share, "the rest is for graphs and libraries")

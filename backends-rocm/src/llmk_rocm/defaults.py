"""Default sizes of the engine by a GPU's memory. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.api import Default, PlatformFacts

_GIB = 1 << 30

_SIZES = (
    (128 * _GIB, 1024, 8192, 0.95),
    (48 * _GIB, 512, 8192, 0.93),
    (20 * _GIB, 256, 4096, 0.9),
    (0, 128, 2048, 0.88),
)
"""(least memory, concurrent requests, tokens per step, cache share). The last is the cache's share of the memory that
weights and the largest step leave: the rest is for memory that torch does not allocate, or only after the cache
(graphs, workspaces of hipBLASLt, buffers of RCCL)."""
_SHARED = 0.75
"""The same where the host's programs use the memory too."""


def advise(platform: PlatformFacts) -> Iterator[Default]:
    """Sizes of a step, and the cache's share of the remaining memory; none if the memory is unknown."""
    if not platform.memory_bytes:
        return
    seqs, tokens, share = next(sizes for least, *sizes in _SIZES if platform.memory_bytes >= least)
    why = f"{platform.memory_bytes / _GIB:.0f} GiB of {platform.device_name or platform.label}"
    if "unified_memory" in platform.features:
        seqs, tokens, share = 64, 2048, _SHARED
        yield Default("cache.memory_share", share, "the host's programs use the same memory")
        why = f"{platform.device_name or platform.label} shares the host's memory, whose bandwidth bounds a step"
    else:
        yield Default("cache.memory_share", share, "the rest is for graphs and libraries")
    yield Default("scheduler.max_num_seqs", seqs, why)
    yield Default("scheduler.max_num_batched_tokens", tokens, why)

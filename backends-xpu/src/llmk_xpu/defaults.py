"""Default sizes of the engine by a GPU's memory. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.api import Default, PlatformFacts

_GIB = 1 << 30

_SIZES: tuple[tuple[int, int, int, float], ...] = (
    (44 * _GIB, 512, 8192, 0.93),
    (20 * _GIB, 256, 4096, 0.9),
    (1, 128, 2048, 0.88),
)
"""(least memory, concurrent requests, tokens per step, cache share). The last is the cache's share of the memory that
weights and the largest step leave: the rest is for memory that torch does not allocate, or only after the cache
(workspaces of oneDNN, buffers of oneCCL)."""
_SHARED = 0.6
"""The same where the host's programs use the memory too, and the driver doesn't say how much of it is free."""


def advise(platform: PlatformFacts) -> Iterator[Default]:
    """Sizes of a step, and the cache's share of the remaining memory. Without sizes if the memory is unknown, unless it
    is the host's."""
    name = platform.device_name or platform.label
    yield Default("engine.graphs", False, "they were never captured on an Intel GPU; true uses them, if torch has them")
    if "unified_memory" in platform.features:
        share: float = _SHARED
        seqs, tokens, why = 32, 2048, f"{name} shares the host's memory, whose bandwidth bounds a step"
        yield Default("cache.memory_share", share, "the host's programs use the same memory")
    elif platform.memory_bytes:
        _, seqs, tokens, share = next(sizes for sizes in _SIZES if platform.memory_bytes >= sizes[0])
        why = f"{platform.memory_bytes / _GIB:.0f} GiB of {name}"
        yield Default("cache.memory_share", share, "the rest is for the libraries' workspaces")
    else:
        return
    yield Default("scheduler.max_num_seqs", seqs, why)
    yield Default("scheduler.max_num_batched_tokens", tokens, why)

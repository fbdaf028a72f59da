"""What a layer keeps between steps, declared so that one block pool can serve any mix of layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Base of all cache specs. Layers with equal specs share a cache group, hence one block table."""

    block_size: int
    """Tokens per block."""
    page_bytes: int
    """Bytes that one layer stores for one block."""


@dataclass(frozen=True, slots=True)
class FullAttentionCache(CacheSpec):
    """Keys and values of every earlier token."""


@dataclass(frozen=True, slots=True)
class SlidingWindowCache(CacheSpec):
    """Keys and values of the last ``window`` tokens; blocks that fall out of it are freed."""

    window: int = 0

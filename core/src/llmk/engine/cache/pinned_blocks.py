"""Pinned prefixes: parts of the cache that stay until their time is up, even where blocks run out."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.cache.block_tables import BlockTables

logger = logging.getLogger(__name__)

MOST_PREFIXES = 32
"""Prefixes that one tenant's requests may pin."""


@dataclass(frozen=True, slots=True)
class _Pin:
    blocks: list[int]
    until: float


@dataclass(frozen=True, slots=True)
class _Prefix(_Pin):
    """A pin of a client's request."""

    tenant: str
    held: frozenset[int]


class PinnedBlocks:
    """Holds blocks of ``cache`` besides those of requests, no more than ``share`` of them, and no more than
    ``tenant_share`` for the requests of one tenant.

    Pins are a promise of speed, not of memory: where a request alone in the engine could not go on for want of blocks,
    the oldest pin is dropped (:meth:`drop_oldest`), and those of clients before those of operators.
    """

    def __init__(self, cache: BlockCache, share: float, tenant_share: float = 0.0) -> None:
        self.limit = int(share * cache.num_blocks)
        self.tenant_limit = min(self.limit, int(tenant_share * cache.num_blocks))
        self._cache = cache
        self._pins: dict[str, _Pin] = {}
        self._prefixes: list[_Prefix] = []
        """Oldest first."""
        self._num_prefix_blocks = 0
        self._soonest = math.inf
        """When the first of these ends."""

    @property
    def ids(self) -> list[str]:
        """What operators have pinned, oldest first."""
        return list(self._pins)

    @property
    def num_blocks(self) -> int:
        """Blocks that are pinned; one that several pins hold counts for each."""
        return sum(len(pin.blocks) for pin in self._pins.values()) + self._num_prefix_blocks

    def hold(self, id: str, tables: BlockTables, token_ids: Sequence[int], until: float) -> int:
        """Pins the longest cached prefix of ``token_ids`` until ``until``, in place of what ``id`` pinned before;
        returns its length in tokens. 0: nothing is cached, or it is more than may be pinned.
        """
        self.drop(id)
        length, blocks = self._cache.hold(tables, token_ids)
        while self._prefixes and len(blocks) <= self.limit < self.num_blocks + len(blocks):
            self._drop_prefix(self._prefixes[0])
        if not length or self.num_blocks + len(blocks) > self.limit:
            self._cache.pool.release(blocks)
            return 0
        self._pins[id] = _Pin(blocks, until)
        return length

    def hold_prefix(self, tenant: str, tables: BlockTables, token_ids: Sequence[int], until: float) -> int:
        """Pins the longest cached prefix of ``token_ids`` for a client until ``until``; returns its length in tokens.
        0: nothing is cached, or it is more than the tenant may pin.

        It takes the place of the tenant's pins that are parts of it, and of its oldest ones where it needs their room.
        """
        length, blocks = self._cache.hold(tables, token_ids)
        pin = _Prefix(blocks, until, tenant, frozenset(blocks))
        own = [other for other in self._prefixes if other.tenant == tenant]
        if any(pin.held <= other.held and until <= other.until for other in own):
            self._cache.pool.release(blocks)
            return length
        room = min(self.tenant_limit, self.limit - self.num_blocks + sum(len(other.blocks) for other in own))
        if not length or len(blocks) > room:
            self._cache.pool.release(blocks)
            return 0
        kept = []
        for other in own:
            if other.held <= pin.held and other.until <= until:
                self._drop_prefix(other)
            else:
                kept.append(other)
        while len(kept) >= MOST_PREFIXES or (kept and sum(len(each.blocks) for each in kept) + len(blocks) > room):
            self._drop_prefix(kept.pop(0))
        self._prefixes.append(pin)
        self._num_prefix_blocks += len(blocks)
        self._soonest = min(self._soonest, until)
        return length

    def _drop_prefix(self, pin: _Prefix) -> None:
        self._prefixes.remove(pin)
        self._num_prefix_blocks -= len(pin.blocks)
        self._soonest = min((each.until for each in self._prefixes), default=math.inf)
        self._cache.pool.release(pin.blocks)

    def why_not(self, num_tokens: int, prefix_caching: bool) -> str:
        """Why a prompt of so many tokens was not pinned."""
        if not prefix_caching:
            return "prefixes can't be pinned: cache.prefix_caching is off"
        return (
            f"the prompt's {num_tokens} tokens can't be pinned: they fill no block, or more than is left"
            f" of the {self.limit} blocks that pins may hold (cache.pin_share)"
        )

    def drop(self, id: str) -> None:
        """Ends a pin; one that is unknown or has ended is ignored."""
        pin = self._pins.pop(id, None)
        if pin is not None:
            self._cache.pool.release(pin.blocks)

    def expire(self, now: float) -> None:
        """Ends the pins whose time is up."""
        if self._pins:
            for id in [id for id, pin in self._pins.items() if pin.until <= now]:
                self.drop(id)
        if self._soonest <= now:
            for prefix in [prefix for prefix in self._prefixes if prefix.until <= now]:
                self._drop_prefix(prefix)

    def drop_oldest(self) -> bool:
        """Drops the oldest pin; returns whether there was one."""
        if self._prefixes:
            self._drop_prefix(self._prefixes[0])
            return True
        if not self._pins:
            return False
        id = next(iter(self._pins))
        logger.warning("the pin %s is dropped: a request that runs alone needs its blocks", id)
        self.drop(id)
        return True

"""Pinned prefixes: parts of the cache that stay until their time is up, even where blocks run out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.cache.block_tables import BlockTables

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pin:
    blocks: list[int]
    until: float


class PinnedBlocks:
    """Holds blocks of ``cache`` besides those of requests, no more than ``share`` of them.

    Pins are a promise of speed, not of memory: where a request alone in the engine could not go on for want of blocks,
    the oldest pin is dropped (:meth:`drop_oldest`).
    """

    def __init__(self, cache: BlockCache, share: float) -> None:
        self.limit = int(share * cache.num_blocks)
        self._cache = cache
        self._pins: dict[str, _Pin] = {}

    @property
    def ids(self) -> list[str]:
        """What is pinned, oldest first."""
        return list(self._pins)

    @property
    def num_blocks(self) -> int:
        """Blocks that are pinned; one that several pins hold counts for each."""
        return sum(len(pin.blocks) for pin in self._pins.values())

    def hold(self, id: str, tables: BlockTables, token_ids: Sequence[int], until: float) -> int:
        """Pins the longest cached prefix of ``token_ids`` until ``until``, in place of what ``id`` pinned before;
        returns its length in tokens. 0: nothing is cached, or it is more than may be pinned.
        """
        self.drop(id)
        length, blocks = self._cache.hold(tables, token_ids)
        if not length or self.num_blocks + len(blocks) > self.limit:
            self._cache.pool.release(blocks)
            return 0
        self._pins[id] = _Pin(blocks, until)
        return length

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

    def drop_oldest(self) -> bool:
        """Drops the oldest pin; returns whether there was one."""
        if not self._pins:
            return False
        id = next(iter(self._pins))
        logger.warning("the pin %s is dropped: a request that runs alone needs its blocks", id)
        self.drop(id)
        return True

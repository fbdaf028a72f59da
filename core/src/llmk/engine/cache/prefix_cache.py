"""Prefix caching: the longest prefix of a prompt whose blocks are still in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from llmk.engine.cache.block_pool import BlockPool
from llmk.engine.cache.block_tables import BlockTables
from llmk.engine.cache.prefix_keys import KeyChain
from llmk.planning.cache_groups import CacheGroup


@dataclass(frozen=True, slots=True)
class Hits:
    """A cached prefix of ``length`` tokens: per group, the blocks of it that are read again."""

    length: int
    blocks: list[list[int]]


class PrefixCache:
    """Finds cached prefixes by their keys (:mod:`llmk.engine.cache.prefix_keys`). A prefix is a hit as far as every
    group still has the blocks that it will read.
    """

    def __init__(self, pool: BlockPool, groups: Sequence[CacheGroup]) -> None:
        sizes = [group.block_size for group in groups]
        self.block_size = gcd(*sizes)
        """Tokens per key."""
        self._pool = pool
        self._groups = tuple(groups)
        self._unit = lcm(*sizes)
        self._chain = KeyChain(self.block_size)

    def find(self, tables: BlockTables, token_ids: Sequence[int], left: int = 1) -> Hits:
        """The longest prefix that all groups have, with ``left`` tokens or more behind it."""
        length = (len(token_ids) - left) // self._unit * self._unit
        self.extend_keys(tables, token_ids, length // self.block_size)
        found: list[dict[int, int]] = [{} for _ in self._groups]
        settled = -1
        while length != settled:
            settled = length
            for number in range(len(self._groups)):
                length = self._reach(tables, number, length, found[number])
        blocks = []
        for number, group in enumerate(self._groups):
            needed = range(group.first_needed(length), length // group.block_size)
            blocks.append([found[number][block] for block in needed])
        return Hits(length, blocks)

    def _reach(self, tables: BlockTables, number: int, length: int, found: dict[int, int]) -> int:
        """The longest prefix of ``length`` tokens or fewer for which a group might have all that is needed; ``found``
        keeps what it has.

        A block that is missing is missing to every prefix that ends behind it: the shorter ones reach further back.
        """
        group = self._groups[number]
        keys_per_block = group.block_size // self.block_size
        needed = range(group.first_needed(length), length // group.block_size)
        for block in needed if group.retained is None else reversed(needed):
            if block not in found:
                cached = self._pool.find(tables.keys[(block + 1) * keys_per_block - 1], number)
                if cached is None:
                    return block * group.block_size // self._unit * self._unit
                found[block] = cached
        return length

    def extend_keys(self, tables: BlockTables, token_ids: Sequence[int], count: int) -> None:
        """Adds the keys of the first ``count`` runs of ``block_size`` tokens."""
        tables.parent = self._chain.extend(tables.keys, tables.parent, token_ids, tables.embeddings, count)

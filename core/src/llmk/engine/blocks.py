"""Blocks of the K/V cache: who holds them, what they contain, and which of them to take next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct


class BlockPool:
    """The blocks of one cache group.

    A block is held by one or more requests, or free. A free block may still be cached: what it contains is known by a
    key and can be had again until the block is taken for something else. Free blocks without a key are taken first,
    then the least recently used ones.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._free)

    def find(self, key: bytes) -> int | None:
        """The block that contains what ``key`` names."""
        return self._cached.get(key)

    def is_free(self, block: int) -> bool:
        """Whether nobody holds ``block``."""
        return self._holders[block] == 0

    def take(self, count: int) -> list[int]:
        """Takes ``count`` free blocks to write to; what they contained is forgotten. The caller knows that there are as
        many.
        """
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            key = self._keys[block]
            if key is not None:
                del self._cached[key]
                self._keys[block] = None
            self._holders[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Holds cached blocks once more, for reading."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def name(self, block: int, key: bytes) -> None:
        """Makes a block that is completely computed a hit for ``key``, unless another block is one already."""
        if key not in self._cached:
            self._cached[key] = block
            self._keys[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Gives up one hold on each block of a request, in the request's order: the ends of prefixes are taken before
        their heads.
        """
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                if self._keys[block] is None:
                    self._free.move_to_end(block, last=False)


@dataclass(slots=True)
class BlockTables:
    """What one request holds: a list of block ids per cache group, and the keys of its full blocks."""

    parent: bytes
    """Key of the last block in ``keys``; of the salt where there is none yet."""
    tables: list[list[int]]
    keys: list[bytes] = field(default_factory=list)
    capacity: int = 0
    """Tokens that the held blocks have room for."""
    named: int = 0
    """Blocks from the start whose content is in the cache under its key."""
    awaited: bytes = b""
    """Key of the block that another request was computing when this one last asked."""


class BlockCache:
    """The block pools of all cache groups, and prefix caching over them.

    A block's key is a hash of its parent's key and its own tokens, so that it names the whole prefix, and the salt that
    began the chain. A prefix is a hit as far as every group still has its blocks. One token of a prompt is always left
    to compute.
    """

    def __init__(self, *, num_blocks: int, block_size: int, num_groups: int = 1, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.pools = [BlockPool(num_blocks) for _ in range(num_groups)]
        self._pack = Struct(f"<{block_size}I").pack
        self._computing: set[bytes] = set()

    @property
    def num_free(self) -> int:
        """Blocks that every group could still give."""
        return min(pool.num_free for pool in self.pools)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    def new_tables(self, salt: str = "") -> BlockTables:
        """The tables of a request that holds nothing yet."""
        return BlockTables(_digest(b"", salt.encode()), [[] for _ in self.pools])

    def awaits_another(self, tables: BlockTables, token_ids: Sequence[int]) -> bool:
        """Whether another request is computing the very block at which this one's prefix ends to be a hit."""
        if tables.awaited in self._computing:
            return True
        if not self._computing:
            return False
        num_hits = len(self._find(tables, token_ids)[0])
        tables.awaited = tables.keys[num_hits] if num_hits < len(tables.keys) else b""
        return tables.awaited in self._computing

    def admit(self, tables: BlockTables, token_ids: Sequence[int], *, spare: int = 0, reuse: bool = True) -> int | None:
        """Takes blocks for all of ``token_ids``, with ``reuse`` shared ones where their content is cached.

        Returns:
            How many tokens need not be computed, or ``None`` where there are too few free blocks, ``spare`` of which
            must remain.
        """
        hits = self._find(tables, token_ids) if reuse and self.prefix_caching else [[] for _ in self.pools]
        if not self._suffices(hits, token_ids, spare):
            return None
        num_hits = len(hits[0])
        fresh = self.blocks_for(len(token_ids)) - num_hits
        for pool, table, shared in zip(self.pools, tables.tables, hits, strict=True):
            pool.share(shared)
            table.extend(shared)
            table.extend(pool.take(fresh))
        self._computing.update(tables.keys[num_hits:])
        tables.capacity = (num_hits + fresh) * self.block_size
        tables.named = num_hits
        return num_hits * self.block_size

    def fits(self, tables: BlockTables, token_ids: Sequence[int], *, spare: int = 0, reuse: bool = True) -> bool:
        """Whether :meth:`admit` would take blocks."""
        hits = self._find(tables, token_ids) if reuse and self.prefix_caching else [[] for _ in self.pools]
        return self._suffices(hits, token_ids, spare)

    def _suffices(self, hits: list[list[int]], token_ids: Sequence[int], spare: int) -> bool:
        needed = self.blocks_for(len(token_ids)) - len(hits[0]) + spare
        return all(
            pool.num_free - sum(pool.is_free(block) for block in shared) >= needed
            for pool, shared in zip(self.pools, hits, strict=True)
        )

    def extend(self, tables: BlockTables) -> list[list[int]] | None:
        """Takes one more block in every group; returns the new ids per group, or ``None`` where a group has no free
        block.
        """
        if not all(pool.num_free for pool in self.pools):
            return None
        new = [pool.take(1) for pool in self.pools]
        for table, blocks in zip(tables.tables, new, strict=True):
            table.extend(blocks)
        tables.capacity += self.block_size
        return new

    def commit(self, tables: BlockTables, token_ids: Sequence[int], num_computed: int) -> None:
        """Makes full blocks hits, now that the first ``num_computed`` of ``token_ids`` are known to be in the cache."""
        full = num_computed // self.block_size
        if full <= tables.named or not self.prefix_caching:
            return
        self._extend_keys(tables, token_ids, full)
        for pool, table in zip(self.pools, tables.tables, strict=True):
            for i in range(tables.named, full):
                pool.name(table[i], tables.keys[i])
        self._computing.difference_update(tables.keys[tables.named : full])
        tables.named = full

    def release(self, tables: BlockTables) -> None:
        """Gives back all that a request holds. Its keys stay valid, for when it comes back."""
        self._computing.difference_update(tables.keys[tables.named :])
        for pool, table in zip(self.pools, tables.tables, strict=True):
            pool.release(table)
            table.clear()
        tables.capacity = tables.named = 0

    def _find(self, tables: BlockTables, token_ids: Sequence[int]) -> list[list[int]]:
        """The cached blocks of the longest prefix that all groups have, per group."""
        limit = (len(token_ids) - 1) // self.block_size
        self._extend_keys(tables, token_ids, limit)
        hits: list[list[int]] = [[] for _ in self.pools]
        for i in range(limit):
            blocks = [pool.find(tables.keys[i]) for pool in self.pools]
            for group, block in zip(hits, blocks, strict=True):
                if block is None:
                    return [group[:i] for group in hits]
                group.append(block)
        return hits

    def _extend_keys(self, tables: BlockTables, token_ids: Sequence[int], count: int) -> None:
        size = self.block_size
        for start in range(len(tables.keys) * size, count * size, size):
            tables.parent = _digest(tables.parent, self._pack(*token_ids[start : start + size]))
            tables.keys.append(tables.parent)


def _digest(parent: bytes, content: bytes) -> bytes:
    return blake2b(parent + content, digest_size=32).digest()

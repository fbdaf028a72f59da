"""The blocks of all requests: taking, extending, sharing and giving them back."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.engine.cache.block_log import BlockLog, logged_group
from llmk.engine.cache.block_pool import BlockPool
from llmk.engine.cache.block_tables import NO_BLOCK, BlockTables
from llmk.engine.cache.prefix_cache import Hits, PrefixCache
from llmk.engine.cache.prefix_keys import first_key
from llmk.engine.wire.block_events import BlockEvent
from llmk.engine.wire.prompt import EmbeddingRun
from llmk.planning.cache_groups import CacheGroup


class BlockCache:
    """Block tables of all requests over one pool, and prefix caching.

    One token of a prompt is always left to compute.
    """

    def __init__(
        self, *, num_blocks: int, groups: Sequence[CacheGroup] = (CacheGroup(16),), prefix_caching: bool = True
    ) -> None:
        sizes = [group.block_size for group in groups]
        self.num_blocks = num_blocks
        self.groups = tuple(groups)
        self.prefix_caching = prefix_caching
        self.pool = BlockPool(num_blocks, len(groups))
        self.prefixes = PrefixCache(self.pool, groups)
        self.block_size = self.prefixes.block_size if prefix_caching else min(sizes)
        """Tokens per key."""
        self._partial = [number for number, group in enumerate(groups) if group.retained is not None]
        self._computing: set[bytes] = set()
        self._log: BlockLog | None = None

    @property
    def num_free(self) -> int:
        """Blocks that are not held."""
        return self.pool.num_free

    def keep_log(self) -> None:
        """Has :meth:`take_events` say what is stored and removed from now on."""
        number = logged_group(self.groups)
        log = self._log = BlockLog(number, self.groups[number].block_size)
        self.pool.on_removed = lambda group, key: log.removed(key) if group == number else None

    def take_events(self) -> list[BlockEvent]:
        """What was stored and removed since the last call."""
        return self._log.take() if self._log is not None else []

    def least_blocks(self, num_tokens: int, chunk: int = 1) -> int:
        """Blocks without which not even a request alone can have ``num_tokens`` tokens, ``chunk`` of them computed at
        once.
        """
        return sum(group.most_held(num_tokens, chunk) for group in self.groups)

    def new_tables(self, salt: str = "", adapter: int = 0, embeddings: Sequence[EmbeddingRun] = ()) -> BlockTables:
        """The tables of a request that holds nothing yet, whose prompt has ``embeddings``. Requests share prefixes of
        equal salt and adapter."""
        none = [0] * len(self.groups)
        key = first_key(salt, adapter)
        return BlockTables(key, [[] for _ in none], none.copy(), none.copy(), none.copy(), embeddings, adapter)

    def awaits_another(self, tables: BlockTables, token_ids: Sequence[int]) -> bool:
        """Whether another request is computing the very tokens at which this one's prefix ends to be a hit."""
        if tables.awaited in self._computing:
            return True
        if not self._computing:
            return False
        known = self.prefixes.find(tables, token_ids).length // self.block_size
        tables.awaited = tables.keys[known] if known < len(tables.keys) else b""
        return tables.awaited in self._computing

    def admit(
        self, tables: BlockTables, token_ids: Sequence[int], *, ahead: int, spare: int = 0, reuse: bool = True
    ) -> int | None:
        """Takes blocks for ``token_ids``, with ``reuse`` shared ones where their content is cached. Groups that give
        blocks back take those of the first ``ahead`` tokens to be computed; :meth:`extend` gets the others.

        Returns:
            How many tokens need not be computed, or ``None`` where there are too few free blocks, ``spare`` of which
            must remain.
        """
        hits = self._hits(tables, token_ids, reuse)
        fresh = self._fresh(hits.length, len(token_ids), ahead)
        if not self._suffices(hits, sum(fresh) + spare):
            return None
        for shared in hits.blocks:
            self.pool.share(shared)
        for number, (group, shared) in enumerate(zip(self.groups, hits.blocks, strict=True)):
            whole = hits.length // group.block_size
            tables.first[number] = whole - len(shared)
            tables.tables[number] = [NO_BLOCK] * (whole - len(shared)) + shared + self.pool.take(fresh[number])
            tables.named[number] = whole
        tables.num_sent = [len(table) for table in tables.tables]
        tables.committed = hits.length // self.block_size
        tables.due = hits.length + self.block_size
        self._computing.update(tables.keys[tables.committed :])
        self._count(tables)
        return hits.length

    def fits(
        self, tables: BlockTables, token_ids: Sequence[int], *, ahead: int, spare: int = 0, reuse: bool = True
    ) -> bool:
        """Whether :meth:`admit` would take blocks."""
        hits = self._hits(tables, token_ids, reuse)
        return self._suffices(hits, sum(self._fresh(hits.length, len(token_ids), ahead)) + spare)

    def cached(self, tables: BlockTables, token_ids: Sequence[int]) -> int:
        """How many tokens :meth:`admit` would find cached."""
        return self._hits(tables, token_ids, reuse=True).length

    def extend(self, tables: BlockTables, num_tokens: int, *, spare: int = 0) -> bool:
        """Takes blocks until there is room for ``num_tokens`` tokens, or no block is free but ``spare`` others; returns
        whether there is room for more than before.
        """
        before = tables.capacity
        while tables.capacity < num_tokens:
            full = [
                table
                for group, table in zip(self.groups, tables.tables, strict=True)
                if len(table) * group.block_size <= tables.capacity
            ]
            if len(full) + spare > self.pool.num_free:
                break
            for table in full:
                table.extend(self.pool.take(1))
            tables.grown = True
            self._count(tables)
        return tables.capacity > before

    def commit(self, tables: BlockTables, token_ids: Sequence[int], num_computed: int) -> None:
        """Makes full blocks hits, now that the first ``num_computed`` of ``token_ids`` are known to be in the cache,
        and gives back those that are not read again.
        """
        if num_computed < tables.due:
            return
        whole = num_computed // self.block_size
        tables.due = (whole + 1) * self.block_size
        if self.prefix_caching:
            self.prefixes.extend_keys(tables, token_ids, whole)
            self._name(tables, token_ids, num_computed)
            self._computing.difference_update(tables.keys[tables.committed : whole])
        tables.committed = whole
        for number in self._partial:
            first, needed = tables.first[number], self.groups[number].first_needed(num_computed)
            if needed > first:
                self.pool.release(tables.tables[number][first:needed])
                tables.tables[number][first:needed] = [NO_BLOCK] * (needed - first)
                tables.first[number] = needed

    def release(self, tables: BlockTables) -> None:
        """Gives back all that a request holds. Its keys stay valid, for when it comes back."""
        self._computing.difference_update(tables.keys[tables.committed :])
        for number, table in enumerate(tables.tables):
            self.pool.release(table[tables.first[number] :])
            tables.tables[number] = []
            tables.first[number] = tables.num_sent[number] = tables.named[number] = 0
        tables.capacity = tables.committed = tables.due = 0
        tables.grown = False

    def hold(self, tables: BlockTables, token_ids: Sequence[int]) -> tuple[int, list[int]]:
        """Holds the longest cached prefix of ``token_ids`` (all of it, if need be) once more: its length in tokens, and
        the blocks, which are the caller's to give back to the pool.
        """
        hits = self.prefixes.find(tables, token_ids, left=0)
        blocks = [block for shared in hits.blocks for block in shared]
        self.pool.share(blocks)
        return hits.length, blocks

    def _hits(self, tables: BlockTables, token_ids: Sequence[int], reuse: bool) -> Hits:
        if reuse and self.prefix_caching:
            return self.prefixes.find(tables, token_ids)
        return Hits(0, [[] for _ in self.groups])

    def _fresh(self, cached: int, length: int, ahead: int) -> list[int]:
        """Blocks that each group needs besides the cached ones."""
        started = min(length, cached + ahead)
        return [
            group.blocks_for(length if group.retained is None else started) - cached // group.block_size
            for group in self.groups
        ]

    def _suffices(self, hits: Hits, needed: int) -> bool:
        reclaimed = sum(self.pool.is_free(block) for shared in hits.blocks for block in shared)
        return self.pool.num_free - reclaimed >= needed

    def _count(self, tables: BlockTables) -> None:
        tables.capacity = min(
            len(table) * group.block_size for group, table in zip(self.groups, tables.tables, strict=True)
        )

    def _name(self, tables: BlockTables, token_ids: Sequence[int], num_computed: int) -> None:
        for number, group in enumerate(self.groups):
            keys_per_block = group.block_size // self.block_size
            full = num_computed // group.block_size
            table = tables.tables[number]
            for block in range(max(tables.named[number], tables.first[number]), full):
                key = tables.keys[(block + 1) * keys_per_block - 1]
                if self.pool.name(table[block], key, number) and self._log is not None and self._log.group == number:
                    parent = tables.keys[block * keys_per_block - 1] if block else None
                    start = block * group.block_size
                    self._log.stored(key, parent, token_ids[start : start + group.block_size], tables.adapter)
            tables.named[number] = full

"""What was stored and removed, for those outside of the engine who want to know which prefixes it has."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.engine.cache.prefix_keys import block_hash
from llmk.engine.wire.block_events import BlockEvent, BlockRemoved, BlockStored
from llmk.planning.cache_groups import CacheGroup


def logged_group(groups: Sequence[CacheGroup]) -> int:
    """The group whose blocks are logged: the first that keeps all tokens; where none does, the first."""
    return next((number for number, group in enumerate(groups) if group.retained is None), 0)


class BlockLog:
    """Keeps what happened to the blocks of one group until it is taken. Consecutive blocks become one event."""

    def __init__(self, group: int, block_size: int) -> None:
        self.group = group
        self.block_size = block_size
        self._events: list[BlockEvent] = []

    def stored(self, key: bytes, parent: bytes | None, token_ids: Sequence[int], adapter: int) -> None:
        """A block with ``token_ids`` can be reused, after the one of ``parent`` (``None``: it is the first)."""
        before = block_hash(parent) if parent is not None else None
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockStored) and last.block_hashes[-1] == before and last.lora_id == (adapter or None):
            last.block_hashes.append(block_hash(key))
            last.token_ids += token_ids
        else:
            event = BlockStored([block_hash(key)], before, list(token_ids), self.block_size, adapter or None)
            self._events.append(event)

    def removed(self, key: bytes) -> None:
        """A block is taken for something else."""
        if self._events and isinstance(last := self._events[-1], BlockRemoved):
            last.block_hashes.append(block_hash(key))
        else:
            self._events.append(BlockRemoved([block_hash(key)]))

    def take(self) -> list[BlockEvent]:
        """All that happened since the last call, in its order."""
        events, self._events = self._events, []
        return events

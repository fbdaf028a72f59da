"""What happens to blocks of the cache, for those who route requests to where their prefixes are.

The structs are what routers of clusters read (llm-d, Dynamo): vLLM's events, each a msgpack array that starts with its
name, and optional fields at its end left out.
"""

from __future__ import annotations

import msgspec


class BlockStored(msgspec.Struct, array_like=True, tag=True, omit_defaults=True, gc=False):
    """Consecutive blocks of a sequence can be reused now. ``parent_block_hash`` is that of the block before them;
    ``None``: they are the first. ``token_ids`` are those of all of them. ``lora_id`` is the adapter's number, from 1.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class BlockRemoved(msgspec.Struct, array_like=True, tag=True, omit_defaults=True, gc=False):
    """Blocks can't be reused any more."""

    block_hashes: list[int]


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True, omit_defaults=True, gc=False):
    """No block can be reused any more."""


BlockEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """A message: the events of a step, at ``ts`` seconds since the epoch, of the replica of that number."""

    ts: float
    events: list[BlockEvent]
    data_parallel_rank: int | None = None

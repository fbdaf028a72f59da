"""Which blocks a replica holds, by its events, and which it will hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmk.engine.cache.prefix_keys import KeyChain, block_hash, first_key
from llmk.engine.wire.block_events import AllBlocksCleared, BlockEvent, BlockRemoved, BlockStored
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineRequest


class ReplicaBlocks(dict[int, int]):
    """What a replica has of prompts: blocks that its events name, and those of prompts that it was given. Each is
    counted once for its event, and once for each prompt; a dictionary, since routers look up many of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: set[int] = set()
        """Those that its events name."""

    def take(self, events: Iterable[BlockEvent]) -> None:
        """Follows what happens to its cache."""
        for event in events:
            match event:
                case BlockStored():
                    self.expect(set(event.block_hashes) - self.stored)
                    self.stored.update(event.block_hashes)
                case BlockRemoved():
                    self.settle(self.stored.intersection(event.block_hashes))
                    self.stored.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.settle(self.stored)
                    self.stored.clear()

    def expect(self, blocks: Iterable[int]) -> None:
        """It was given a prompt."""
        for block in blocks:
            self[block] = self.get(block, 0) + 1

    def settle(self, blocks: Iterable[int]) -> None:
        """It has computed that prompt, or will not: from now on its events alone count."""
        for block in blocks:
            left = self[block] - 1
            if left:
                self[block] = left
            else:
                del self[block]


def blocks_of(request: EngineRequest, info: EngineInfo) -> Sequence[int]:
    """The hashes of a prompt's full blocks, as its engine will compute them; none where it caches no prefixes."""
    size = info.shared_block_size
    if not size or info.block_size > size:
        return ()
    tokens, keys = request.prompt_token_ids, list[bytes]()
    per_block = size // info.block_size
    first = first_key(request.context.cache_salt, request.adapter)
    KeyChain(info.block_size).extend(keys, first, tokens, request.embeddings, len(tokens) // size * per_block)
    return [block_hash(key) for key in keys[per_block - 1 :: per_block]]

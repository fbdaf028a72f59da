"""Which blocks a replica holds, by its events, and which it will hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from llmk.engine.cache.prefix_keys import KeyChain, block_hash, first_key
from llmk.engine.wire.block_events import AllBlocksCleared, BlockEvent, BlockRemoved, BlockStored
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineRequest


class ReplicaBlocks:
    """What a replica has of prompts: blocks that its events tell of, and those of prompts that it was given."""

    def __init__(self) -> None:
        self._stored: set[int] = set()
        self._expected: Counter[int] = Counter()

    def __contains__(self, block: object) -> bool:
        return block in self._stored or block in self._expected

    def __len__(self) -> int:
        """How many it holds."""
        return len(self._stored)

    def take(self, events: Iterable[BlockEvent]) -> None:
        """Follows what happens to its cache."""
        for event in events:
            match event:
                case BlockStored():
                    self._stored.update(event.block_hashes)
                case BlockRemoved():
                    self._stored.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self._stored.clear()

    def expect(self, blocks: Iterable[int]) -> None:
        """It was given a prompt."""
        self._expected.update(blocks)

    def settle(self, blocks: Iterable[int]) -> None:
        """It has computed that prompt, or will not: from now on its events alone count."""
        for block in blocks:
            self._expected[block] -= 1
            if self._expected[block] <= 0:
                del self._expected[block]


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

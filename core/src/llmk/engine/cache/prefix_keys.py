"""Keys of prefixes: a key is a hash of its parent's key and of the tokens between, so that it names the whole prefix,
and the salt that starts the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

from llmk.engine.wire.prompt import EmbeddingRun


def first_key(salt: str, adapter: int = 0) -> bytes:
    """The key that starts a chain."""
    key = _digest(b"", salt.encode())
    # 9 bytes: tokens have a multiple of 4, so that no chain of other requests has this key.
    return _digest(key, b"a" + adapter.to_bytes(8)) if adapter else key


class KeyChain:
    """Extends chains by a key for every ``size`` tokens."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pack = Struct(f"<{size}I").pack

    def extend(
        self, keys: list[bytes], parent: bytes, token_ids: Sequence[int], runs: Sequence[EmbeddingRun], count: int
    ) -> bytes:
        """Adds to ``keys``, the last of which is ``parent`` (or the one that starts the chain), until there are
        ``count``; returns the last. ``runs`` are embeddings that are given in place of tokens."""
        size = self.size
        for start in range(len(keys) * size, count * size, size):
            content = self._pack(*token_ids[start : start + size])
            for run in runs:
                content += run.keys_between(start, start + size)
            parent = _digest(parent, content)
            keys.append(parent)
        return parent


def block_hash(key: bytes) -> int:
    """What stands for a key outside of the engine: its last 64 bits, which is what routers of clusters take."""
    return int.from_bytes(key[-8:], "big")


def _digest(parent: bytes, content: bytes) -> bytes:
    return blake2b(parent + content, digest_size=32).digest()

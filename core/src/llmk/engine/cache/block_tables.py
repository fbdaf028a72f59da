"""Block tables: which blocks a request holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmk.engine.wire.prompt import EmbeddingRun

NO_BLOCK = 0
"""What stands in a table for a block that was given back, or never held: any block will do, since it is not read."""


@dataclass(slots=True)
class BlockTables:
    """What one request holds: a list of block ids per cache group, and the keys of its tokens."""

    parent: bytes
    """The last of ``keys``; that of the salt where it is empty."""
    tables: list[list[int]]
    first: list[int]
    """Per group, the first entry that is held; those before stand for blocks that were given back."""
    num_sent: list[int]
    """Per group, how many entries the runner knows; fewer than there are where they have ``grown``."""
    named: list[int]
    """Per group, how many blocks from the start are in the cache under their key, or were given back."""
    embeddings: Sequence[EmbeddingRun] = ()
    """Those of its prompt, which its keys depend on."""
    adapter: int = 0
    """The number of its adapter."""
    keys: list[bytes] = field(default_factory=list)
    capacity: int = 0
    """Tokens that the held blocks have room for."""
    committed: int = 0
    """How many of ``keys`` are of tokens that are known to be computed."""
    due: int = 0
    """Tokens at which there is something to commit again."""
    awaited: bytes = b""
    """Key of what another request was computing when this one was last checked."""
    grown: bool = False

    def all_blocks(self) -> list[list[int]]:
        """All tables, for a runner that has none of these blocks yet."""
        self.take_new_blocks()
        return [list(table) for table in self.tables]

    def take_new_blocks(self) -> list[list[int]]:
        """Per group, the blocks that the runner was not sent yet; an empty list where it has all."""
        if not self.grown:
            return []
        self.grown = False
        new_blocks = [table[sent:] for sent, table in zip(self.num_sent, self.tables, strict=True)]
        self.num_sent = [len(table) for table in self.tables]
        return new_blocks

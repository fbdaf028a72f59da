"""The blocks of the cache: who holds them, what they contain, and which of them to take next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class BlockPool:
    """Blocks that all cache groups take from.

    A block is held by one or more requests, or free. A free block may still be cached: what it contains is known by its
    group and a key, and can be had again until the block is taken for something else. Free blocks without a key are
    taken first, then the least recently used ones.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._names: list[tuple[int, bytes] | None] = [None] * num_blocks
        self._cached: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.on_removed: Callable[[int, bytes], None] | None = None
        """Called with the group and key of each block that is no hit any more."""

    @property
    def num_free(self) -> int:
        """Blocks that are not held, cached or not."""
        return len(self._free)

    def find(self, key: bytes, group: int = 0) -> int | None:
        """The block that contains what ``key`` names in ``group``."""
        return self._cached[group].get(key)

    def is_free(self, block: int) -> bool:
        """Whether ``block`` is not held."""
        return self._holders[block] == 0

    def take(self, count: int) -> list[int]:
        """Takes ``count`` free blocks to write to; what they contained is forgotten. The caller knows that there are as
        many.
        """
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            name = self._names[block]
            if name is not None:
                del self._cached[name[0]][name[1]]
                self._names[block] = None
                if self.on_removed is not None:
                    self.on_removed(*name)
            self._holders[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Holds cached blocks once more, for reading."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def name(self, block: int, key: bytes, group: int = 0) -> bool:
        """Makes a block that is completely computed a hit for ``key`` in ``group``, unless another one is already;
        returns whether it did."""
        if key in self._cached[group]:
            return False
        self._cached[group][key] = block
        self._names[block] = (group, key)
        return True

    def release(self, blocks: Sequence[int]) -> None:
        """Gives up one hold on each block of a request, in the request's order: the ends of prefixes are taken before
        their heads.
        """
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                if self._names[block] is None:
                    self._free.move_to_end(block, last=False)

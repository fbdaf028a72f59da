"""Admits requests of batches: few at a time, and none while other requests wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from llmk.engine.wire.request import EngineStats

POLL_SECONDS = 0.05
SHARE = 4
"""While other requests run, batches have one of so many of the places that they have alone."""


class Gate:
    """Admits ``most`` requests while no others run, fewer while some do, and none while requests wait for the engine.
    They are admitted in the order in which they come. ``stats`` returns the engine's."""

    def __init__(self, most: int, stats: Callable[[], EngineStats]) -> None:
        self.most = most
        self._stats = stats
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()
        self.running = 0
        """Sequences of batches that run."""

    @contextlib.asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Waits for a place, and frees it at the end."""
        async with self._turn:
            while self.running >= self.room():
                self._left.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._left.wait(), POLL_SECONDS)
            self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._left.set()

    @contextlib.contextmanager
    def more(self, count: int) -> Iterator[None]:
        """Counts ``count`` further sequences of a request that has entered."""
        self.running += count
        try:
            yield
        finally:
            self.running -= count

    def room(self) -> int:
        """How many sequences of batches may run now."""
        stats = self._stats()
        if stats.waiting:
            return 0
        return max(1, self.most // SHARE) if stats.running > self.running else self.most

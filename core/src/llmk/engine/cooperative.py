"""Long work in small steps, so that the event loop gets to others in between."""

from __future__ import annotations

import asyncio
import time

SECONDS = 0.002
"""So long work may hold the event loop at a stretch."""


class Yielder:
    """Awaited between the steps of a work, lets the event loop run where they have held it for :data:`SECONDS`."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def step(self) -> None:
        """A step is done. What was awaited in it counts as held: at worst the loop runs once too often."""
        if time.perf_counter() - self._since > SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()

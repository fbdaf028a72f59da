"""Who uses the database next: tenants take turns."""

from __future__ import annotations

import asyncio
from collections import deque


class Places:
    """``count`` places. Those who wait get one in turns: one of each tenant, however many of its own wait."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Who waits, by tenant; the tenant whose turn it is comes first."""

    async def enter(self, tenant: str) -> None:
        """Waits for a place, which :meth:`leave` frees."""
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Passes a place on to the next who waits."""
        while self._waiting:
            tenant = next(iter(self._waiting))
            waiting = self._waiting.pop(tenant)
            place = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

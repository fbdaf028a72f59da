"""Whose request starts next: the event loop is shared by all clients."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Starts one request of each client per iteration of the event loop.

    Clients can send hundreds of requests at once (pipelined, or over many connections), each of which takes about a
    millisecond of the event loop. Requests and streams of other clients get their turn after each of them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Clients that had their turn in this iteration, or of which requests wait."""

    async def take(self, client: str) -> None:
        """Waits until a request of ``client`` may start."""
        waiting = self._waiting.get(client)
        loop = asyncio.get_running_loop()
        if waiting is None:
            self._waiting[client] = deque()
            loop.call_soon(self._next, client)
            return
        turn: asyncio.Future[None] = loop.create_future()
        waiting.append(turn)
        await turn

    def _next(self, client: str) -> None:
        waiting = self._waiting[client]
        while waiting and waiting[0].done():  # its request was cancelled
            waiting.popleft()
        if not waiting:
            del self._waiting[client]
            return
        waiting.popleft().set_result(None)
        asyncio.get_running_loop().call_soon(self._next, client)

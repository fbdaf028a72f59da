"""Memory that the C library keeps of requests that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmk.engine.device.heap import find_trim

LEAST = 8 << 20
"""Freed bytes from which on it is worth it to look for pages that can be returned."""
SECONDS = 2.0
"""From then until it is done: bodies that come together are returned together."""


class HeapTrimmer:
    """Returns the memory of bodies to the system. By itself, the C library keeps what lies below anything that is still
    in use, which after some large bodies may be hundreds of MiB."""

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        self._trim = trim or find_trim()
        self._freed = 0
        self._due: asyncio.TimerHandle | None = None

    def freed(self, size: int) -> None:
        """Takes note that so many bytes are no longer in use."""
        self._freed += size
        if self._freed >= LEAST and self._due is None and self._trim is not None:
            self._due = asyncio.get_running_loop().call_later(SECONDS, self._start)

    def _start(self) -> None:
        assert self._trim is not None
        self._freed, self._due = 0, None
        asyncio.get_running_loop().run_in_executor(None, self._trim)

"""An engine in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import threading
from collections.abc import Callable, Iterator

from llmk.api import EngineDead
from llmk.engine.core import EngineCore
from llmk.engine.processes.engine_loop import run_engine
from llmk.engine.processes.loop_client import LoopClient
from llmk.engine.processes.loop_messages import Close, Command, Reply
from llmk.engine.wire.engine_info import EngineInfo


class InProcessClient(LoopClient):
    """Runs an engine's loop in a thread."""

    def __init__(self, build: Callable[[], tuple[EngineCore, EngineInfo]]) -> None:
        super().__init__()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=run_engine, args=(build, self._receive, self._reply), name="llmk-engine", daemon=True
        )

    @classmethod
    async def start(cls, build: Callable[[], tuple[EngineCore, EngineInfo]]) -> InProcessClient:
        """Starts the thread, in which ``build`` makes the engine. Raises what ``build`` raises."""
        client = cls(build)
        client._thread.start()
        try:
            await client._ready
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """Stops the thread at the end of its step, and frees the engine. Idempotent."""
        self._commands.put(Close())
        self._die(EngineDead("the engine was closed"))
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        gc.collect()

    def _kill(self, why: str) -> None:
        self._die(EngineDead(why))

    def _send(self, command: Command) -> None:
        self._commands.put(command)

    def _receive(self, seconds: float | None) -> Iterator[Command]:
        if seconds is None or seconds > 0:
            with contextlib.suppress(queue.Empty):
                yield self._commands.get(timeout=seconds)
        while not self._commands.empty():
            yield self._commands.get()

    def _reply(self, reply: Reply) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, reply)

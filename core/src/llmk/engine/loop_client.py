"""What all clients of an engine's loop share: outputs in order, pings, and one cause for everything once it is dead."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable

from llmk.api import EngineDead, LlmkError
from llmk.engine.client import EngineInfo, Outage
from llmk.engine.loop import Abort, Add, Command, Failed, Ping, Pong, Ready, Reply, Stepped, Unpin
from llmk.engine.plugin_calls import Culprit
from llmk.engine.request import EngineOutputs, EngineRequest


class LoopClient(ABC):
    """The event-loop side of a conversation with an engine's loop. Follows
    :class:`~llmk.engine.client.EngineClient`.
    """

    info: EngineInfo
    outage: Outage | None = None
    culprit: Culprit | None = None

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        # An engine that is closed before anybody waits for it has failed nobody: asyncio need not report that.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._outputs: asyncio.Queue[EngineOutputs | None] = asyncio.Queue()
        self._pings: dict[int, asyncio.Future[None]] = {}
        self._num_pings = 0
        self._dead: LlmkError | None = None

    async def add(self, requests: list[EngineRequest]) -> None:
        """Queues sequences."""
        self._send_or_raise(Add(requests))

    async def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences; unknown ids are ignored. Never waits."""
        self._send_or_raise(Abort(list(ids)))

    async def unpin(self, ids: Iterable[str]) -> None:
        """Ends pins; unknown ids are ignored. Never waits."""
        self._send_or_raise(Unpin(list(ids)))

    async def next_outputs(self) -> EngineOutputs:
        """Waits for what the next step brings. What came before the engine died is delivered first."""
        outputs = await self._outputs.get()
        if outputs is None:
            self._outputs.put_nowait(None)
            raise self._cause()
        return outputs

    async def check_health(self, timeout: float = 1.0) -> None:
        """Raises :class:`~llmk.api.EngineDead` unless the engine's loop answers within ``timeout`` seconds."""
        self._num_pings += 1
        number = self._num_pings
        answer = self._pings[number] = self._loop.create_future()
        try:
            self._send_or_raise(Ping(number))
            await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            what = f"the engine has not answered for {timeout:g} s; it hangs, or one step takes longer"
            raise EngineDead(what) from None
        finally:
            del self._pings[number]

    @abstractmethod
    async def close(self) -> None:
        """Stops the engine and frees what it holds. Idempotent."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hands over a command without waiting."""

    def _take(self, reply: Reply) -> None:
        """Takes a reply, on the event loop."""
        match reply:
            case Ready():
                self.info = reply.info
                self._ready.set_result(reply.info)
            case Stepped():
                self._outputs.put_nowait(reply.outputs)
            case Pong():
                answer = self._pings.get(reply.number)
                if answer is not None and not answer.done():
                    answer.set_result(None)
            case Failed():
                self._die(reply.failure.error())

    def _die(self, error: LlmkError) -> None:
        """Everything that waits or will be asked fails with ``error``. Only the first cause counts."""
        if self._dead is not None:
            return
        self._dead = error
        if not self._ready.done():
            self._ready.set_exception(error)
        for answer in self._pings.values():
            if not answer.done():
                answer.set_exception(self._cause())
        self._outputs.put_nowait(None)

    def _send_or_raise(self, command: Command) -> None:
        if self._dead is not None:
            raise self._cause()
        self._send(command)

    def _cause(self) -> EngineDead:
        """A fresh error for each who asks, so that tracebacks don't pile up on one."""
        first = self._dead
        if not isinstance(first, EngineDead):
            dead = EngineDead(f"the engine's loop broke: {first}")
            dead.__cause__ = first
            return dead
        dead = EngineDead(first.message, hint=first.hint)
        for note in getattr(first, "__notes__", ()):
            dead.add_note(note)
        return dead

"""What all clients of an engine's loop share: outputs in order, signs of life, and one cause for everything once it is
dead.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

from llmk.api import EngineDead, LlmkError
from llmk.engine.processes.loop_messages import Abort, Add, Command, Failed, Ping, Pong, Ready, Reply, Stepped, Unpin
from llmk.engine.processes.output_queue import OutputQueue, OutputSink
from llmk.engine.wire.engine_info import EngineInfo, Outage
from llmk.engine.wire.plugin_calls import Culprit
from llmk.engine.wire.request import EngineRequest

PING_SECONDS = 1.0
"""Between two pings. The loop answers them between its steps."""
PINGS = 4
"""So many pings at least are sent before patience ends."""
IDLE_SECONDS = 3.0
"""An engine that runs nothing answers at once; one that has not for so long is not well."""


class LoopClient(ABC):
    """The event-loop side of a conversation with an engine's loop. Follows
    :class:`~llmk.engine.processes.client.EngineClient`.

    It pings the loop from when that is ready, so that what is known of the engine's health is at hand.
    """

    info: EngineInfo
    outage: Outage | None = None
    culprit: Culprit | None = None
    _patience = math.inf
    """Seconds that the loop may be silent, be it at work or not."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        # Closing an engine before it is awaited is not an error: asyncio need not report the exception.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self.outputs = OutputQueue()
        self._sink: OutputSink = self.outputs
        self._at_work: set[str] = set()
        """Sequences that the loop may be running."""
        self._aborted: set[str] = set()
        """Of these, those that it was sent an abort for since the last ping."""
        self._pong = Pong(0)
        self._silence = 0.0
        """Seconds without a sign of life, counted in ticks: what stops both sides for a while adds one."""
        self._asking: asyncio.Task[None] | None = None
        self._dead: LlmkError | None = None

    async def add(self, requests: list[EngineRequest]) -> None:
        """Queues sequences."""
        self._send_or_raise(Add(requests))
        self._at_work.update(request.id for request in requests)

    async def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences; unknown ids are ignored. Never waits."""
        gone = list(ids)
        self._send_or_raise(Abort(gone))
        self._aborted.update(gone)

    async def unpin(self, ids: Iterable[str]) -> None:
        """Ends pins; unknown ids are ignored. Never waits."""
        self._send_or_raise(Unpin(list(ids)))

    def forward(self, sink: OutputSink) -> None:
        """Has ``sink`` get all outputs, instead of the client's own queue."""
        self._sink = sink
        self.outputs.forward(sink)

    def check_health(self) -> float:
        """Says at once for how many seconds a step has been running without a sign of life. Raises
        :class:`~llmk.api.EngineDead` where the engine is dead, or does not answer although it runs nothing.
        """
        if self._dead is not None:
            raise self._cause()
        if self._at_work:
            return self._silence
        if self._silence >= IDLE_SECONDS:
            raise EngineDead(f"the engine has not answered for {self._silence:.0f} s, though it runs nothing")
        return 0.0

    @abstractmethod
    async def close(self) -> None:
        """Stops the engine and frees what it holds. Idempotent."""

    @abstractmethod
    def _kill(self, why: str) -> None:
        """Gives the engine up, and ends what runs it where that can be."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hands over a command without waiting."""

    def _take(self, reply: Reply) -> None:
        """Takes a reply, on the event loop."""
        match reply:
            case Ready():
                self.info = reply.info
                self._ready.set_result(reply.info)
                self._asking = asyncio.create_task(self._ask(), name="llmk-pings")
            case Stepped():
                self._silence = 0.0
                self._at_work.difference_update(
                    output.id for output in reply.outputs.outputs if output.finish_reason is not None
                )
                if self._dead is None:
                    self._sink.put(reply.outputs)
            case Pong():
                self._pong = reply
                if reply.well:
                    self._silence = 0.0
            case Failed():
                self._die(reply.failure.error())

    def _die(self, error: LlmkError) -> None:
        """Every pending and later call fails with ``error``. Only the first cause counts."""
        if self._dead is not None:
            return
        self._dead = error
        if not self._ready.done():
            self._ready.set_exception(error)
        if self._asking is not None:
            self._asking.cancel()
        self._sink.end(self._cause)

    async def _ask(self) -> None:
        """Pings the loop, the next time once it has answered, and counts how long it is silent."""
        number, ended = 0, set[str]()
        interval = min(PING_SECONDS, self._patience / PINGS)
        while self._silence < self._patience:
            if self._pong.number == number:
                self._at_work -= ended  # it has read what was sent before the ping
                ended, self._aborted = self._aborted, set()
                number += 1
                self._send(Ping(number))
            await asyncio.sleep(interval)
            if self._pong.number != number or not self._pong.well:
                self._silence += interval
        self._kill(f"the engine did not answer for {self._patience:g} s (engine.hang_seconds) and was killed")

    def _send_or_raise(self, command: Command) -> None:
        if self._dead is not None:
            raise self._cause()
        self._send(command)

    def _cause(self) -> EngineDead:
        """A new error for each caller, so that tracebacks don't pile up on one."""
        first = self._dead
        if not isinstance(first, EngineDead):
            dead = EngineDead(f"the engine's loop broke: {first}")
            dead.__cause__ = first
            return dead
        dead = EngineDead(first.message, hint=first.hint)
        for note in getattr(first, "__notes__", ()):
            dead.add_note(note)
        return dead

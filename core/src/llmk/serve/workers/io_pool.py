"""Runs IO processors in workers, with a watchdog: the front end's side."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from llmk.api import LlmkError, PluginError
from llmk.engine.text.io_processors import ProcessLost
from llmk.engine.text.output_processor import GenerationDelta
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.serve.workers.io_worker import Answer, Drop, Open, Order, Outcome, Take
from llmk.serve.workers.worker_process import TooMuchMemory, Worker

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often the watchdog looks."""
NO_KEY = -1
IDLE_SECONDS = 30.0
"""A worker that serves no request for so long ends, so that its memory returns; it is forked again in milliseconds."""


class WorkerIO:
    """Runs each IO processor in a separate worker, which is forked by ``fork`` when a request first names the
    processor.

    One call may take ``seconds``, and make the worker grow by ``memory`` bytes.
    """

    def __init__(self, fork: Callable[[], Awaitable[Worker]], seconds: float, memory: int) -> None:
        self._fork = fork
        self._seconds = seconds
        self._memory = memory
        self._hosts: dict[str, _Host] = {}
        self._keys = itertools.count()

    async def open(self, id: str, name: str, body: bytes, info: EngineInfo, context: RequestContext) -> WorkerRun:
        """Starts a request to the processor ``id``, called ``name`` in errors.

        Raises the request's error, or ProcessLost if the worker ended because of another request.
        """
        host = self._hosts.get(id)
        if host is None or host.task.done():
            host = self._hosts[id] = _Host(name, self._fork, self._seconds, self._memory)
        key = next(self._keys)
        try:
            outcome = await host.call(key, Open(key, id, body, context, info))
        except BaseException:
            host.drop(key)
            raise
        return WorkerRun(key, host, outcome.sequences)

    async def close(self) -> None:
        """Ends all workers."""
        for host in self._hosts.values():
            host.task.cancel()
        await asyncio.gather(*(host.task for host in self._hosts.values()), return_exceptions=True)


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """A running request, whose :class:`llmk.engine.text.io_processors.IORun` is in the worker."""

    key: int
    host: _Host
    sequences: list[EngineRequest]

    async def add(self, delta: GenerationDelta) -> None:
        """Passes on the next output of one of the sequences."""
        if delta.finish_reason in ("abort", "error"):
            raise LlmkError(f"the request was ended before it finished ({delta.finish_reason})")
        await self.host.call(self.key, Take(self.key, delta))

    async def answer(self) -> bytes:
        """The response as JSON."""
        return (await self.host.call(self.key, Answer(self.key))).answer

    def close(self) -> None:
        """Drops the request."""
        self.host.drop(self.key)


class _Host:
    """The worker of one processor."""

    def __init__(self, name: str, fork: Callable[[], Awaitable[Worker]], seconds: float, memory: int) -> None:
        self._name = name
        self._fork = fork
        self._seconds = seconds
        self._memory = memory
        self._orders: deque[Order] = deque()
        """Orders that are not sent yet, since the worker is not started."""
        self._calls: deque[tuple[int, asyncio.Future[Outcome]]] = deque()
        """Calls without an outcome yet, with the request's key."""
        self._open: set[int] = set()
        """Keys of running requests."""
        self._idle_since = time.monotonic()
        self._worker: Worker | None = None
        self.task = asyncio.create_task(self._run(), name="llmk-io")

    async def call(self, key: int, order: Order) -> Outcome:
        """Makes a call in the worker, after earlier ones, and waits for its outcome."""
        if self.task.done():
            raise ProcessLost
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._open.add(key)
        self._calls.append((key, done))
        self._send(order)
        outcome = await done
        if outcome.failure is not None:
            raise outcome.failure.error()
        return outcome

    def drop(self, key: int) -> None:
        """Forgets a request."""
        self._open.discard(key)
        self._idle_since = time.monotonic()
        if not self.task.done():
            self._send(Drop(key))

    def _send(self, order: Order) -> None:
        if self._worker is None:
            self._orders.append(order)
        else:
            self._worker.link.send(order)

    async def _run(self) -> None:
        guilty, error = NO_KEY, LlmkError("")
        try:
            guilty, error = await self._serve(await self._fork())
        except LlmkError:
            logger.exception("no process can be started for %s", self._name)
        finally:
            if self._worker is not None:
                self._worker.kill()
                self._worker.close()
            for key, done in self._calls:
                if not done.done():
                    done.set_exception(error if key == guilty else ProcessLost())

    def _is_idle(self) -> bool:
        return not self._open and not self._calls and time.monotonic() - self._idle_since > IDLE_SECONDS

    async def _serve(self, worker: Worker) -> tuple[int, LlmkError]:
        """Passes on outcomes until the worker is gone or must go; returns the key of the request that failed, and
        why."""
        while self._orders:
            worker.link.send(self._orders.popleft())
        self._worker, killed = worker, ""
        decoder = msgspec.msgpack.Decoder(Outcome)
        try:
            while True:
                receiving = asyncio.ensure_future(worker.link.receive())
                try:
                    while not (await asyncio.wait([receiving], timeout=LOOK_SECONDS))[0]:
                        if self._is_idle():
                            return NO_KEY, LlmkError("")
                        if self._calls and worker.growth > self._memory:
                            return self._calls[0][0], TooMuchMemory(self._memory)
                        marked = worker.mark.read()
                        if not killed and marked is not None and marked.seconds > self._seconds:
                            killed = f"did not return within {self._seconds:g} s (server.plugin_seconds)"
                            worker.kill()
                    outcome = decoder.decode(receiving.result())
                finally:
                    receiving.cancel()
                _, done = self._calls.popleft()
                if not done.done():
                    done.set_result(outcome)
        except EOFError:
            marked = worker.mark.read()
            how = killed or f"ended its process, which {await worker.ending()}"
            logger.error("%s %s", self._name, how)
            return int(marked.what) if marked is not None else NO_KEY, PluginError(f"{self._name} {how}")

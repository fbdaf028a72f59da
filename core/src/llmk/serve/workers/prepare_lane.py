"""A lane: a queue of requests per tenant, served round-robin by a few workers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from llmk.api import LlmkError, Overloaded, RequestError
from llmk.serve.workers.prepared_request import Prepared, PreparedReply, Work
from llmk.serve.workers.worker_process import TooMuchMemory, Worker

logger = logging.getLogger(__name__)


class TooSlow(RequestError):
    """Preparing a request took too long."""

    code = "too_slow_to_prepare"


class WorkerFailed(LlmkError):
    """The process that prepared a request has ended."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one tenant, the most requests and bytes that may wait; and the most seconds and bytes of memory that a request
    may take."""

    requests: int
    num_bytes: int
    seconds: float
    memory: int


@dataclass(slots=True)
class _Waiting:
    work: Work
    body: bytes
    done: asyncio.Future[Prepared]


@dataclass(slots=True)
class _Queue:
    """The waiting requests of one tenant."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    num_bytes: int = 0


class PrepareLane:
    """Prepares requests with ``count`` workers, which are forked by ``fork``."""

    def __init__(self, name: str, fork: Callable[[], Awaitable[Worker]], count: int, bounds: Bounds) -> None:
        self._fork = fork
        self._bounds = bounds
        self._queues: dict[str, _Queue] = {}
        self._turns: deque[str] = deque()
        """Tenants with waiting requests, the next one first."""
        self._some = asyncio.Condition()
        self._decode = msgspec.msgpack.Decoder(PreparedReply).decode
        self._tasks = [asyncio.create_task(self._serve(), name=f"llmk-{name}-{n}") for n in range(count)]

    async def prepare(self, work: Work, body: bytes) -> Prepared:
        """What a worker makes of a request. Where the caller is cancelled, one that waits is dropped.

        Raises:
            Overloaded: where too much of the tenant waits.
            TooSlow: where it took too long.
            TooMuchMemory: where it took too much memory.
            WorkerFailed: where it broke the worker.
        """
        tenant = work.context.tenant
        queue = self._queues.setdefault(tenant, _Queue())
        size = len(body)
        if queue.waiting and (
            len(queue.waiting) >= self._bounds.requests or queue.num_bytes + size > self._bounds.num_bytes
        ):
            what = f"{len(queue.waiting)} requests of this client, of {queue.num_bytes} bytes, wait to be prepared"
            raise Overloaded(f"{what}, the limit (server.prepare_waiting, server.prepare_waiting_bytes)")
        waiting = _Waiting(work, body, asyncio.get_running_loop().create_future())
        if not queue.waiting:
            self._turns.append(tenant)
        queue.waiting.append(waiting)
        queue.num_bytes += size
        async with self._some:
            self._some.notify()
        try:
            return await waiting.done
        except asyncio.CancelledError:
            self._drop(tenant, waiting)
            raise

    async def close(self) -> None:
        """Stops; waiting requests are never prepared."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _drop(self, tenant: str, waiting: _Waiting) -> None:
        queue = self._queues.get(tenant)
        if queue is not None and waiting in queue.waiting:
            queue.waiting.remove(waiting)
            queue.num_bytes -= len(waiting.body)
            if not queue.waiting:
                self._turns.remove(tenant)
                del self._queues[tenant]

    async def _next(self) -> _Waiting:
        """The next request, of the tenant whose turn it is."""
        async with self._some:
            await self._some.wait_for(lambda: bool(self._turns))
            tenant = self._turns.popleft()
            queue = self._queues[tenant]
            waiting = queue.waiting.popleft()
            queue.num_bytes -= len(waiting.body)
            if queue.waiting:
                self._turns.append(tenant)
            else:
                del self._queues[tenant]
            return waiting

    async def _serve(self) -> None:
        """Prepares waiting requests with one worker, which is replaced when it has ended."""
        worker: Worker | None = await self._forked()
        waiting: _Waiting | None = None
        try:
            while True:
                waiting = await self._next()
                worker = await self._attend(worker or await self._forked(), waiting)
                if worker is None and not waiting.done.done():  # the worker may have ended for another reason
                    worker = await self._attend(await self._forked(), waiting, final=True)
                worker = worker or await self._forked()
        finally:
            if waiting is not None:
                waiting.done.cancel()
            if worker is not None:
                worker.close()

    async def _forked(self) -> Worker:
        while True:
            try:
                return await self._fork()
            except LlmkError:
                logger.exception("no worker could be started; trying again in a second")
                await asyncio.sleep(1.0)

    async def _attend(self, worker: Worker, waiting: _Waiting, *, final: bool = False) -> Worker | None:
        """Has ``worker`` prepare a request, and returns the worker if it can be used again.

        If the worker has ended, the request stays without a result, unless this is the ``final`` attempt.
        """
        if waiting.done.done():
            return worker
        outcome: Prepared | Exception
        left: Worker | None = None
        try:
            async with asyncio.timeout(self._bounds.seconds):
                worker.link.send(waiting.work)
                await worker.link.send_large(waiting.body)
                done = self._decode(await worker.receive(self._bounds.memory))
            outcome = done.prepared
            if done.last:
                worker.close()
            else:
                left = worker
        except TimeoutError:
            worker.kill()
            worker.close()
            what = f"preparing the request took longer than {self._bounds.seconds:g} s (server.prepare_seconds)"
            outcome = TooSlow(what, hint="send less in one request")
        except TooMuchMemory as error:
            worker.close()
            outcome = error
        except EOFError:
            how = await worker.ending()
            worker.close()
            logger.error("a process that prepares requests %s", how)
            if not final:
                return None
            outcome = WorkerFailed(f"the process that prepared the request {how}")
        except BaseException:
            worker.kill()
            worker.close()
            raise
        if waiting.done.done():
            return left
        if isinstance(outcome, Exception):
            waiting.done.set_exception(outcome)
        else:
            waiting.done.set_result(outcome)
        return left

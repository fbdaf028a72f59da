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

SMALL = 16 << 10
"""Bytes of a small request: at worst, preparing it takes some tens of milliseconds. A worker gets several requests at
once that have no more together, as each exchange with it waits for all that the event loop sends to clients meanwhile.
"""
TRIES = 2
"""How often a request is given to a worker that ends with it."""
_decode = msgspec.msgpack.Decoder(PreparedReply).decode


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
    tries: int = 0
    """How many workers have ended with it."""


@dataclass(slots=True)
class _Queue:
    """The waiting requests of one tenant."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    num_bytes: int = 0


class PrepareLane:
    """Prepares requests with ``count`` workers, which are forked by ``fork``: ``ahead``, or when there is a request."""

    def __init__(
        self, name: str, fork: Callable[[], Awaitable[Worker]], count: int, bounds: Bounds, *, ahead: bool
    ) -> None:
        self._fork = fork
        self._ahead = ahead
        self._count = count
        self._bounds = bounds
        self._queues: dict[str, _Queue] = {}
        self._turns: deque[str] = deque()
        """Tenants with waiting requests, the next one first."""
        self._some = asyncio.Condition()
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

    async def _next(self) -> deque[_Waiting]:
        """The next requests of the tenant whose turn it is: a worker's share of those that wait, as long as they are no
        larger together than a small one may be by itself."""
        async with self._some:
            await self._some.wait_for(lambda: bool(self._turns))
        tenant = self._turns.popleft()
        queue = self._queues[tenant]
        share, size = -(-len(queue.waiting) // self._count), 0
        batch = deque[_Waiting]()
        while queue.waiting and len(batch) < share:
            size += len(queue.waiting[0].body)
            if batch and size > SMALL:
                break
            batch.append(queue.waiting.popleft())
            queue.num_bytes -= len(batch[-1].body)
        if queue.waiting:
            self._turns.append(tenant)
        else:
            del self._queues[tenant]
        return batch

    async def _serve(self) -> None:
        """Prepares waiting requests with one worker, which is replaced when it has ended."""
        worker: Worker | None = None
        batch = deque[_Waiting]()
        try:
            while True:
                if self._ahead:
                    worker = worker or await self._forked()
                batch = batch or await self._next()
                worker = worker or await self._forked()
                if not await self._attend(worker, batch):
                    worker = None
        finally:
            for waiting in batch:
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

    async def _attend(self, worker: Worker, batch: deque[_Waiting]) -> bool:
        """Has ``worker`` prepare the requests of a batch, and takes each out once it has a result. Returns whether the
        worker can be used again.

        It prepares one after the other: so it is the first one left that it ended with. That one is tried once more,
        as the worker may have ended for another reason.
        """
        seconds, memory = self._bounds.seconds, self._bounds.memory
        try:
            async with asyncio.timeout(seconds):
                await _give(worker, batch)
            while batch:
                async with asyncio.timeout(seconds):
                    done = _decode(await worker.receive(memory))
                _settle(batch.popleft(), done.prepared)
                if done.last:
                    worker.close()
                    return False
        except TimeoutError:
            worker.kill()
            worker.close()
            what = f"preparing the request took longer than {seconds:g} s (server.prepare_seconds)"
            _settle(batch.popleft(), TooSlow(what, hint="send less in one request"))
        except TooMuchMemory as error:
            worker.close()
            _settle(batch.popleft(), error)
        except EOFError:
            how = await worker.ending()
            worker.close()
            logger.error("a process that prepares requests %s", how)
            batch[0].tries += 1
            if batch[0].tries == TRIES:
                _settle(batch.popleft(), WorkerFailed(f"the process that prepared the request {how}"))
        except BaseException:
            worker.kill()
            worker.close()
            raise
        else:
            return True
        return False


async def _give(worker: Worker, batch: deque[_Waiting]) -> None:
    """Sends a worker the requests of a batch that somebody still waits for, and takes out the others."""
    for _ in range(len(batch)):
        waiting = batch.popleft()
        if not waiting.done.done():
            batch.append(waiting)
            worker.link.send(waiting.work)
            await worker.link.send_large(waiting.body)


def _settle(waiting: _Waiting, outcome: Prepared | Exception) -> None:
    if waiting.done.done():  # its client is gone
        return
    if isinstance(outcome, Exception):
        waiting.done.set_exception(outcome)
    else:
        waiting.done.set_result(outcome)

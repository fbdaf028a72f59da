"""Runs one batch from its status to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from llmk.serve.batches.batch import BATCH, StoredBatch
from llmk.serve.batches.endpoints import RequestRunner
from llmk.serve.batches.gate import Gate
from llmk.serve.batches.lines import LineChecker, TooManyLines, lines_of, read
from llmk.serve.batches.results import end_batch
from llmk.serve.service import Service
from llmk.serve.storage.errors import StorageFull

if TYPE_CHECKING:
    from llmk.serve.storage.batch_requests import RequestLine
    from llmk.serve.storage.transaction import Transaction

PAGE = 64
"""Requests that are read from the database at a time."""
LINES = 2
"""Lines of an input file, many of which may be empty, for each request that it may have."""


class BatchWork:
    """The work on a batch, which :meth:`run` does from where it stands."""

    def __init__(self, service: Service, gate: Gate, tenant: str, batch: StoredBatch) -> None:
        self._storage = service.storage
        self._service = service
        self._gate = gate
        self._tenant = tenant
        self._id = batch.shown.id
        self._batch = batch
        self._file = service.storage.content(batch.shown.input_file_id)
        self._requests = RequestRunner(service, gate, tenant, batch.shown.endpoint)
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Runs the batch to its end. Cancelling stops it, so that another call goes on later."""
        if self._batch.shown.status == "validating":
            await self._validate()
        if self._batch.shown.status == "in_progress":
            await self._run_requests()
        if self._batch.shown.status in ("cancelling", "finalizing"):
            await end_batch(self._storage, self._tenant, self._batch)

    def interrupt(self) -> None:
        """Stops the requests that run."""
        if self._running is not None:
            self._running.cancel()

    async def _change(self, change: Callable[[StoredBatch], object]) -> None:
        """Changes the stored batch."""

        def update(to: Transaction) -> StoredBatch:
            batch = StoredBatch.of(to.get(self._tenant, BATCH, self._id))
            change(batch)
            batch.save(to, self._tenant)
            return batch

        self._batch = await self._storage.run(update, self._tenant)

    async def _validate(self) -> None:
        """Reads the input file, and stores where its requests are."""
        from llmk.serve.storage.batch_requests import RequestLine

        checker = LineChecker(self._service, self._tenant, self._batch.shown.endpoint)
        most = self._storage.section.batch_requests
        await self._storage.run(lambda to: to.forget_requests(self._id), self._tenant)
        try:
            groups = lines_of(self._file, self._service.config.max_request_bytes, LINES * most)
            while checker.count <= most and (group := await asyncio.to_thread(next, groups, None)):
                valid = await checker.check(group)
                await self._add([RequestLine(line.number, id, line.start, line.size) for line, id in valid])
        except OSError:
            checker.refuse("input_file_deleted", "the input file was deleted", "input_file_id")
        except TooManyLines:
            checker.refuse("too_many_lines", f"the input file has more than {LINES * most} lines", "input_file_id")
        else:
            if not checker.count:
                checker.refuse("empty_file", "the input file has no lines", "input_file_id")
        if checker.count > most:
            message = f"the input file has more than {most} requests (storage.batch_requests)"
            checker.refuse("too_many_requests", message, "input_file_id")
        await self._change(lambda batch: self._after_validation(batch, checker.errors))

    async def _add(self, rows: list[RequestLine]) -> None:
        await self._storage.run(lambda to: to.add_requests(self._id, rows), self._tenant)

    def _after_validation(self, batch: StoredBatch, errors: list[dict[str, Any]]) -> None:
        if batch.shown.status == "validating":
            if errors:
                batch.fail(sorted(errors, key=lambda error: error["line"] or 0))
            else:
                batch.shown.enter("in_progress")

    async def _run_requests(self) -> None:
        """Runs the requests that have no result. Ends early if the batch is cancelled, expires, or storage is full."""
        self._running = asyncio.create_task(self._all_requests())
        left = self._batch.shown.expires_at - time.time()
        full: StorageFull | None = None
        try:
            await asyncio.wait((self._running,), timeout=max(0.0, left))
            expired = not self._running.done()
            if not expired and not self._running.cancelled() and (error := self._running.exception()):
                full = _full(error)
        finally:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if expired:
            await self._expire()
        interrupted = self._running.cancelled() and not expired

        def after(batch: StoredBatch) -> None:
            if batch.shown.status != "in_progress":
                return
            if full is not None:
                batch.fail([{"code": full.code, "message": str(full), "param": None, "line": None}])
            elif not interrupted:
                batch.ending = "expired" if expired else "completed"
                batch.shown.enter("finalizing")

        await self._change(after)

    async def _all_requests(self) -> None:
        requests = self._unfinished()
        async with aclosing(requests), asyncio.TaskGroup() as group:
            turn = asyncio.Lock()
            for _ in range(self._gate.most):
                group.create_task(self._run_some(requests, turn))

    async def _run_some(self, requests: AsyncIterator[RequestLine], turn: asyncio.Lock) -> None:
        """Runs requests, one after the other, as long as there are any."""
        while True:
            async with self._gate.entered():
                async with turn:
                    request = await anext(requests, None)
                if request is None:
                    return
                await self._run_request(request)

    async def _unfinished(self) -> AsyncGenerator[RequestLine, None]:
        last = 0
        while page := await self._pending(last):
            for request in page:
                yield request
            last = page[-1].number

    async def _pending(self, last: int) -> list[RequestLine]:
        return await self._storage.run(lambda to: to.pending_requests(self._id, after=last, limit=PAGE), self._tenant)

    async def _run_request(self, request: RequestLine) -> None:
        try:
            line = await asyncio.to_thread(read, self._file, request)
        except OSError:
            error = {"code": "input_file_deleted", "message": "the input file was deleted"}
            await self._finish(request, None, error)
            return
        ended = await self._requests.run(line)
        response = {"status_code": ended.status, "request_id": ended.id, "body": ended.body}
        await self._finish(request, response, None)

    async def _finish(
        self, request: RequestLine, response: dict[str, Any] | None, error: dict[str, Any] | None
    ) -> None:
        """Stores a result. Raises StorageFull for a response."""
        failed = response is None or response["status_code"] >= 400
        line = {"id": f"batch_req_{uuid4().hex}", "custom_id": request.custom_id, "response": response, "error": error}
        result = msgspec.json.encode(line) + b"\n"

        def keep(to: Transaction) -> None:
            if response is not None:
                to.check_room(self._tenant, len(result))
            to.finish_request(self._id, request.number, result, failed=failed)

        await self._storage.run(keep, self._tenant)

    async def _expire(self) -> None:
        """Gives each request without a result an error."""
        message = "the request was not run before the completion window of the batch ended"
        async with aclosing(self._unfinished()) as requests:
            async for request in requests:
                await self._finish(request, None, {"code": "batch_expired", "message": message})


def _full(error: BaseException) -> StorageFull:
    """The cause that storage is full; raises another one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, StorageFull):
        return error
    raise error

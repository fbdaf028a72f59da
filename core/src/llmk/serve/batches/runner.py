"""Runs the batches of all tenants."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from llmk.api import LlmkError
from llmk.serve.batches.batch import BATCH, UNFINISHED, StoredBatch
from llmk.serve.batches.gate import Gate
from llmk.serve.batches.work import BatchWork
from llmk.serve.service import Service
from llmk.serve.storage.errors import StorageOff, UnknownObject

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction

logger = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
"""Time for which a server has a batch for itself, unless it extends it."""
PAUSE_SECONDS = 5.0
"""Time between two searches for batches that another server has, or after an error."""
PART = 4
"""Batches run at most on this part of the engine's places, if nothing else is configured."""


class Batches:
    """Runs batches: of each tenant one at a time, oldest first. Servers that share a database share the batches."""

    def __init__(self, service: Service) -> None:
        section = service.storage.section
        self._service = service
        self._name = service.name
        self._most = section.batch_concurrency
        self._tenants: dict[str, asyncio.Task[None]] = {}
        self._works: dict[str, BatchWork] = {}
        self._searching: asyncio.Task[None] | None = None
        self._wanted: asyncio.Event | None = None
        self._gate: Gate | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Goes on with unfinished batches of an earlier run, and stops all at the end."""
        if self._service.storage.is_used:
            self.search()
        try:
            yield
        finally:
            await self.stop()

    def search(self) -> None:
        """Runs batches that don't run yet. Call it in the server's event loop when a batch was created."""
        if self._searching is None or self._searching.done():
            self._wanted = asyncio.Event()
            self._searching = asyncio.create_task(self._search(self._wanted), name="llmk-batches")
        assert self._wanted is not None
        self._wanted.set()

    def cancel(self, id: str) -> None:
        """Stops the requests of a batch that is to be cancelled, if it runs here."""
        if (work := self._works.get(id)) is not None:
            work.interrupt()

    async def stop(self) -> None:
        """Aborts running requests, whose batches go on with the next server."""
        tasks = [task for task in (self._searching, *self._tenants.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _search(self, wanted: asyncio.Event) -> None:
        """Starts a task for each tenant that has unfinished batches; ends when there are none."""
        while True:
            wanted.clear()
            try:
                found = await self._service.storage.run(lambda to: list(to.all_of(UNFINISHED)))
            except StorageOff:
                return
            except LlmkError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for tenant in {one.tenant for one in found} - self._tenants.keys():
                self._tenants[tenant] = asyncio.create_task(self._run_tenant(tenant), name="llmk-batches-tenant")
            if not found and not wanted.is_set():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wanted.wait(), PAUSE_SECONDS)

    async def _run_tenant(self, tenant: str) -> None:
        try:
            while (batch := await self._claimed(tenant)) is not None:
                await self._run(tenant, batch)
        except Exception:
            logger.exception("a batch was interrupted; it goes on in %.0f s", PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)
        finally:
            del self._tenants[tenant]

    async def _run(self, tenant: str, batch: StoredBatch) -> None:
        id = batch.shown.id
        if self._gate is None:
            most = self._most or max(1, self._service.engine.boot.settings.config.scheduler.max_num_seqs // PART)
            self._gate = Gate(most, lambda: self._service.engine.stats)
        work = self._works[id] = BatchWork(self._service, self._gate, tenant, batch)
        renewing = asyncio.create_task(self._renew(tenant, id, work))
        try:
            await work.run()
        except UnknownObject:
            logger.warning("batch %s has expired before it ended", id)
        finally:
            del self._works[id]
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _claimed(self, tenant: str) -> StoredBatch | None:
        """The tenant's oldest unfinished batch that no other server runs, which is from now on this one's."""

        def claim(to: Transaction) -> StoredBatch | None:
            for one in to.all_of(UNFINISHED):
                if one.tenant != tenant:
                    continue
                batch = StoredBatch.of(to.get(tenant, BATCH, one.parent))
                if batch.server in ("", self._name) or batch.leased_until <= time.time():
                    batch.server, batch.leased_until = self._name, time.time() + LEASE_SECONDS
                    batch.save(to, tenant)
                    return batch
            return None

        return await self._service.storage.run(claim, tenant)

    async def _renew(self, tenant: str, id: str, work: BatchWork) -> None:
        """Keeps a batch for this server, and stops its requests once it is cancelled or another server has it."""

        def extend(to: Transaction) -> bool:
            batch = StoredBatch.of(to.get(tenant, BATCH, id))
            if batch.server == self._name:
                batch.leased_until = time.time() + LEASE_SECONDS
                batch.save(to, tenant)
            return batch.server == self._name and batch.shown.status != "cancelling"

        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            try:
                if not await self._service.storage.run(extend, tenant):
                    work.interrupt()
            except LlmkError as error:
                logger.warning("the lease of batch %s can't be extended: %s", id, error)

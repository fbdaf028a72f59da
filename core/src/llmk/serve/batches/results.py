"""Ends a batch: its results become files."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from typing import TYPE_CHECKING, BinaryIO

from llmk.serve.batches.batch import BATCH, Counts, StoredBatch
from llmk.serve.storage.files import StoredFile, sync_folder
from llmk.serve.storage.store import Storage

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction

PAGE = 64


async def end_batch(storage: Storage, tenant: str, batch: StoredBatch) -> None:
    """Writes the output and error files of a batch that is finalizing, and ends it with the status ``batch.ending``.

    It may be cut off at any time and done again: the files have the same ids and contents, and only the last step,
    which is one transaction, makes them and the end visible.
    """
    id = batch.shown.id
    output = await _written(storage, tenant, batch, "output", failed=False)
    error = await _written(storage, tenant, batch, "error", failed=True)

    def close(to: Transaction) -> None:
        stored = StoredBatch.of(to.get(tenant, BATCH, id))
        if stored.shown.in_progress_at:
            stored.shown.request_counts = Counts(*to.count_requests(id))
        stored.shown.output_file_id = output.id if output else None
        stored.shown.error_file_id = error.id if error else None
        stored.shown.enter(stored.ending)
        stored.close(to, tenant)
        for file in filter(None, (output, error)):
            file.put(to, tenant, checked=False)

    await storage.run(close, tenant)


async def _written(storage: Storage, tenant: str, batch: StoredBatch, what: str, *, failed: bool) -> StoredFile | None:
    """The file with the results that ``failed``, or didn't, in the order of the input; ``None`` if there are none."""
    id = f"file-{sha256(f'{batch.shown.id} {what}'.encode()).hexdigest()[:32]}"
    part = storage.content(f"{id}.part")
    last = 0
    with await asyncio.to_thread(part.open, "wb") as file:
        while page := await _page(storage, tenant, batch.shown.id, failed, last):
            await asyncio.to_thread(file.writelines, [result for _, result in page])
            last = page[-1][0]
        size = await asyncio.to_thread(_synced, file)
    if not size:
        part.unlink()
        return None
    await asyncio.to_thread(part.rename, storage.content(id))
    await asyncio.to_thread(sync_folder, part.parent)
    name = f"{batch.shown.id}_{what}.jsonl"
    return StoredFile.new(id, size, name, "batch_output", batch.output_seconds)


async def _page(storage: Storage, tenant: str, id: str, failed: bool, last: int) -> list[tuple[int, bytes]]:
    return await storage.run(lambda to: to.results(id, failed=failed, after=last, limit=PAGE), tenant)


def _synced(file: BinaryIO) -> int:
    """The size of a file, once it is on disk."""
    file.flush()
    os.fsync(file.fileno())
    return os.fstat(file.fileno()).st_size

"""Stored files: an object each, and a content on disk."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from llmk.serve.storage.store import Storage

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import StoredObject, Transaction

FILE = "file"
"""The kind of the objects."""
_PAGE = 1000


class StoredFile(msgspec.Struct, kw_only=True):
    """A file, as OpenAI's API shows it; times are in seconds since 1970."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str = "processed"

    @classmethod
    def new(cls, id: str, size: int, filename: str, purpose: str, seconds: float) -> StoredFile:
        """A file that is created now."""
        now = int(time.time())
        return cls(id=id, bytes=size, created_at=now, expires_at=int(now + seconds), filename=filename, purpose=purpose)

    def put(self, to: Transaction, tenant: str, *, checked: bool = True) -> None:
        """Stores the file, whose content is in its place. Raises StorageFull, if the limit is ``checked``."""
        data, size = _encode(self), self.bytes
        to.put(tenant, FILE, self.id, data, expires_at=self.expires_at, more_bytes=size, checked=checked)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredFile).decode


def get(to: Transaction, tenant: str, id: str) -> StoredFile:
    """A file. Raises UnknownObject."""
    return _decode(to.get(tenant, FILE, id).data)


async def listed(
    storage: Storage, tenant: str, *, purpose: str | None, after: str, limit: int, newest_first: bool
) -> tuple[list[StoredFile], bool]:
    """Up to ``limit`` files, of one purpose or all, in the order of creation; and whether there are more. Raises
    UnknownObject if there is no ``after``."""
    found: list[StoredFile] = []
    more = True
    while more and len(found) <= limit:

        def read(to: Transaction, after: str = after) -> tuple[list[StoredObject], bool]:
            return to.page(tenant, FILE, after=after, limit=_PAGE, newest_first=newest_first)

        page, more = await storage.run(read, tenant)
        files = [_decode(one.data) for one in page]
        found += [file for file in files if purpose in (None, file.purpose)]
        after = page[-1].id if page else ""
    return found[:limit], len(found) > limit


async def delete(storage: Storage, tenant: str, id: str) -> None:
    """Deletes a file. Raises UnknownObject."""
    await storage.run(lambda to: to.delete(tenant, FILE, id), tenant)
    await asyncio.to_thread(storage.content(id).unlink, missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Waits until the folder's entries are on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

"""A stored batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import StoredObject, Transaction

BATCH, UNFINISHED = "batch", "batch.unfinished"
"""The kinds of the objects: each unfinished batch has one of the second kind too, whose parent is the batch."""


class Counts(msgspec.Struct):
    """How many of the requests have ended."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """A batch, as OpenAI's API shows it; times are in seconds since 1970."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str
    errors: dict[str, Any] | None = None
    input_file_id: str
    completion_window: str
    status: str = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = msgspec.field(default_factory=Counts)
    metadata: dict[str, str] | None = None

    def enter(self, status: str) -> None:
        """Changes the status, and keeps the time."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))

    def fail(self, errors: list[dict[str, Any]]) -> None:
        """Ends the batch with errors."""
        self.errors = {"object": "list", "data": errors}
        self.enter("failed")


class StoredBatch(msgspec.Struct):
    """A batch with what only the server needs: how long its output is kept, which server runs it, until when that one
    has it for itself, and with which status it is to end."""

    shown: Batch
    output_seconds: float
    server: str = ""
    leased_until: float = 0.0
    ending: str = ""

    @classmethod
    def of(cls, stored: StoredObject) -> StoredBatch:
        """The batch in an object."""
        return _decode(stored.data)

    def create(self, to: Transaction, tenant: str) -> None:
        """Stores a new batch. Raises StorageFull."""
        to.put(tenant, BATCH, self.shown.id, _encode(self))
        to.put(tenant, UNFINISHED, f"{self.shown.id}.run", b"{}", parent=self.shown.id)

    def save(self, to: Transaction, tenant: str) -> None:
        """Stores a change. What the results of its requests take still counts for the batch."""
        old = to.get(tenant, BATCH, self.shown.id)
        more = max(0, old.num_bytes - len(old.data))
        to.replace(tenant, BATCH, self.shown.id, _encode(self), more_bytes=more, checked=False)

    def close(self, to: Transaction, tenant: str) -> None:
        """Stores the last change, after which its requests are forgotten."""
        to.forget_requests(self.shown.id)
        to.replace(tenant, BATCH, self.shown.id, _encode(self), checked=False)
        to.delete(tenant, UNFINISHED, f"{self.shown.id}.run")


def get(to: Transaction, tenant: str, id: str) -> StoredBatch:
    """A batch with its counts. Raises UnknownObject."""
    return counted(to, to.get(tenant, BATCH, id))


def counted(to: Transaction, stored: StoredObject) -> StoredBatch:
    """The batch in an object, with its counts as they are now."""
    batch = StoredBatch.of(stored)
    if batch.shown.status in ("in_progress", "finalizing", "cancelling"):
        batch.shown.request_counts = Counts(*to.count_requests(batch.shown.id))
    return batch


def new_batch_id() -> str:
    """A new id in OpenAI's format."""
    return f"batch_{uuid4().hex}"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredBatch).decode

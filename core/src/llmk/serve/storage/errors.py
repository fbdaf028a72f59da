"""Errors of stored objects."""

from __future__ import annotations

from llmk.api import LlmkError, RequestError


class UnknownObject(RequestError):
    """There is no such object, or it is another tenant's, or it has expired."""

    code, http_status = "not_found", 404

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"there is no {kind} {id!r}", param="id")


class StorageFull(RequestError):
    """The client stores as much as it may."""

    code, http_status = "storage_full", 413


class StorageOff(RequestError):
    """This server stores nothing, or can't."""

    code = "storage_unavailable"


class DatabaseFailed(LlmkError):
    """The database can't be reached, or refused a statement."""

    code, http_status = "unavailable", 503

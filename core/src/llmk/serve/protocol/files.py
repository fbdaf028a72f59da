"""``/v1/files``, and what lists of stored objects have in common."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from llmk.serve.protocol.answers import Answer
from llmk.serve.protocol.base import Body, RequestModel

Purpose = Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"]
"""Purposes of uploaded files (OpenAI's)."""
SHORTEST, LONGEST = 3600, 30 * 24 * 3600
MOST_LISTED = 10_000


class ExpiresAfter(RequestModel):
    """When an object expires, in seconds after it was created."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=SHORTEST, le=LONGEST)]


def _add_file(schema: dict[str, Any]) -> None:
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    schema["required"].append("file")


class FileForm(Body):
    """The fields of an upload, without the file, which is never held in memory."""

    model_config = ConfigDict(json_schema_extra=_add_file)

    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class ListQuery(BaseModel):
    """Which part of a list is wanted: from the object after the one with the id ``after`` on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Annotated[str, Field(max_length=96)] = ""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class FilesQuery(ListQuery):
    """The same for files, which may be of one purpose."""

    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = MOST_LISTED
    order: Literal["asc", "desc"] = "desc"
    purpose: Purpose | Literal["batch_output"] | None = None


class FileAnswer(Answer):
    """A file; times are in seconds since 1970."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose | Literal["batch_output"]
    status: Literal["processed"]


class FilesAnswer(Answer):
    """A page of files."""

    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeletedAnswer(Answer):
    """A file that was deleted."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]

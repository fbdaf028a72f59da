"""``/v1/batches``, and the lines of its input files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from llmk.serve.protocol.answers import Answer
from llmk.serve.protocol.base import Body
from llmk.serve.protocol.files import ExpiresAfter

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]
UNITS = {"m": 60, "h": 3600, "d": 86400}


class BatchRequest(Body):
    """A batch to be created. ``completion_window`` is a number of minutes, hours or days: ``"24h"``."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=96)]
    endpoint: Endpoint
    completion_window: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}[mhd]$")]
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchLine(Body):
    """A line of an input file: a request to ``url``. ``custom_id`` is unique in its file."""

    custom_id: Annotated[str, Field(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: Annotated[str, Field(max_length=64)]
    body: dict[str, Any]


class BatchError(Answer):
    """Why a line of the input file is invalid, or the batch failed."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Answer):
    """The first errors of a batch."""

    object: Literal["list"]
    data: list[BatchError]


class CountsAnswer(Answer):
    """How many of the requests have ended."""

    total: int
    completed: int
    failed: int


class BatchAnswer(Answer):
    """A batch; times are in seconds since 1970."""

    id: str
    object: Literal["batch"]
    endpoint: Endpoint
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: CountsAnswer
    metadata: dict[str, str] | None


class BatchesAnswer(Answer):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool

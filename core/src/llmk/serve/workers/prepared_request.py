"""What a request is prepared to: small messages between the front end and its workers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, overload

import msgspec

from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import RequestContext, SamplingParams
from llmk.serve.generation.event_stream import Job
from llmk.serve.http.json_response import JsonResponse


class Work(msgspec.Struct, array_like=True):
    """A request to be prepared: what it is for, and its context, as far as its body doesn't say it. The body is sent
    after it.

    ``info`` goes with each one, since an engine that was started again may tell something else.
    """

    kind: str
    context: RequestContext
    info: EngineInfo


class Refused(msgspec.Struct, array_like=True, tag=True):
    """A request that can't be served: status, error object and headers of the response."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


class Rendered(msgspec.Struct, array_like=True, tag=True):
    """A request whose answer needs no engine: its JSON."""

    body: bytes


class Pinning(msgspec.Struct, array_like=True, tag=True):
    """A prefix to be pinned. ``tokens`` are packed."""

    context: RequestContext
    tokens: bytes
    seconds: float


class Generation(msgspec.Struct, array_like=True, tag=True):
    """A request to be answered by the engine. ``prompts`` are packed; the rest is
    :class:`~llmk.serve.generation.event_stream.Job`'s, and how the answer is rendered.
    """

    context: RequestContext
    prompts: list[bytes]
    params: SamplingParams
    reading: bytes
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: bool
    stop: list[str] = []
    echo: list[str] = []

    def job(self) -> Job:
        """What is to be generated."""
        return Job(self.context, Prompts(self.prompts), self.params, self.reading, self.stop)


Prepared = Refused | Rendered | Pinning | Generation


class PreparedReply(msgspec.Struct, array_like=True):
    """What a worker made of a request. ``last``: it ends now, since this took too much memory to keep."""

    prepared: Prepared
    last: bool = False


class Refusal(Exception):
    """The request was refused while it was prepared."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.body["error"]["message"])
        self._refused = refused

    def reply(self) -> JsonResponse:
        """The response."""
        return JsonResponse(self._refused.body, self._refused.status, self._refused.headers)


class Prompts(Sequence[list[int]]):
    """Packed prompts, each of which is unpacked whenever it is read: some are long, and there may be many."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, at: int) -> list[int]: ...

    @overload
    def __getitem__(self, at: slice) -> Prompts: ...

    def __getitem__(self, at: int | slice) -> list[int] | Prompts:
        return Prompts(self._packed[at]) if isinstance(at, slice) else unpacked(self._packed[at])


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as 32-bit integers."""
    return array("i", tokens).tobytes()


def unpacked(tokens: bytes) -> list[int]:
    """The token ids again."""
    return array("i", tokens).tolist()

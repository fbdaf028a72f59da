"""Messages between the front end and the workers that prepare requests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, overload

import msgspec

from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.prompt import EmbeddedPrompt, EmbeddingRun, token_ids_of
from llmk.engine.wire.request import RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.serve.generation.choice_deltas import Job
from llmk.serve.generation.pooling_jobs import PoolingJob
from llmk.serve.http.json_response import JsonResponse

ROUTE = "route:"
"""Precedes the id of a plugin's route in :attr:`Work.kind`."""
BATCH = "batch:"
"""Precedes the kind of a batch's request, whose body is a line of the input file."""
INVOCATION = "invocation"
"""The :attr:`Work.kind` of a chat or a text completion: whichever the body is for."""


class Work(msgspec.Struct, array_like=True):
    """A request to be prepared: what it is for, and its context, as far as its body doesn't say it. The body is sent
    after it.

    ``info`` is sent with each request, since it may be different after a restart of the engine. ``headers`` are those
    of the request, for routes of plugins. ``ignores``: unknown fields are no errors.
    """

    kind: str
    context: RequestContext
    info: EngineInfo
    headers: dict[str, str] = {}
    ignores: bool = False


class Refused(msgspec.Struct, array_like=True, tag=True):
    """An invalid request: status, error object and headers of the response."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


class Rendered(msgspec.Struct, array_like=True, tag=True):
    """The JSON response to a request that needs no engine. ``ignored`` are the names of unknown fields."""

    body: bytes
    ignored: list[str] = []


class Pinning(msgspec.Struct, array_like=True, tag=True):
    """A prefix to pin. ``tokens`` are packed."""

    context: RequestContext
    tokens: bytes
    seconds: float
    ignored: list[str] = []


class Generation(msgspec.Struct, array_like=True, tag=True):
    """A request for the engine. ``prompts`` are packed, and ``embeddings`` are those of each; empty: none has
    any. The other fields are those of :class:`~llmk.serve.generation.choice_deltas.Job`, and options for rendering the
    response; ``options`` are those of a plugin's route. ``chat``: the request is a chat, not a text to continue.
    ``ignored`` are the names of unknown fields, ``unenforced`` the keywords of schemas that are not enforced.
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
    embeddings: list[list[EmbeddingRun]] = []
    options: dict[str, Any] = {}
    chat: bool = False
    ignored: list[str] = []
    unenforced: list[str] = []

    def job(self) -> Job:
        """What is to be generated."""
        return Job(self.context, Prompts(self.prompts, self.embeddings), self.params, self.reading, self.stop)


Admitted = Rendered | Pinning | Generation | PoolingJob
Prepared = Refused | Admitted


class PreparedReply(msgspec.Struct, array_like=True):
    """A prepared request. ``last``: the worker ends now, since its memory has grown too much."""

    prepared: Prepared
    last: bool = False


class Refusal(Exception):
    """Raised for a request that was refused during preparation."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.body["error"]["message"])
        self.refused = refused

    def reply(self) -> JsonResponse:
        """The response."""
        return JsonResponse(self.refused.body, self.refused.status, self.refused.headers)


class Prompts(Sequence[list[int] | EmbeddedPrompt]):
    """Packed prompts, which are unpacked when they are read, since they may be long and many. ``embeddings`` are those
    of each; empty: no prompt has any."""

    def __init__(self, packed: Sequence[bytes], embeddings: Sequence[list[EmbeddingRun]] = ()) -> None:
        self._packed = packed
        self._embeddings = embeddings

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, at: int) -> list[int] | EmbeddedPrompt: ...

    @overload
    def __getitem__(self, at: slice) -> Prompts: ...

    def __getitem__(self, at: int | slice) -> list[int] | EmbeddedPrompt | Prompts:
        if isinstance(at, slice):
            return Prompts(self._packed[at], self._embeddings[at])
        tokens = unpacked(self._packed[at])
        return EmbeddedPrompt(tokens, self._embeddings[at]) if self._embeddings else tokens


def packed_embeddings(prompts: Sequence[list[int] | EmbeddedPrompt]) -> list[list[EmbeddingRun]]:
    """The embeddings of each prompt; empty where no prompt has any."""
    found = [prompt.runs if isinstance(prompt, EmbeddedPrompt) else [] for prompt in prompts]
    return found if any(found) else []


def packed(prompt: list[int] | EmbeddedPrompt) -> bytes:
    """Token ids as 32-bit integers."""
    return array("i", token_ids_of(prompt)).tobytes()


def unpacked(tokens: bytes) -> list[int]:
    """The inverse of :func:`packed`."""
    return array("i", tokens).tolist()

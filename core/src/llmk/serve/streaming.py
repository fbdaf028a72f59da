"""Sends responses, streamed or complete, as long as the client is connected."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llmk.engine.cooperative import Yielder
from llmk.serve.generation.choice_deltas import ChoiceDelta, Job, Usage, answer
from llmk.serve.generation.request_record import RequestRecord
from llmk.serve.http import errors
from llmk.serve.http.disconnects import ClientGone, while_connected
from llmk.serve.http.json_response import END_OF_STREAM, JsonResponse, server_sent_event
from llmk.serve.service import Service

BeforeEnd = Callable[[Usage], Awaitable[None]]
Deltas = Callable[[Usage, Scope], AsyncGenerator[ChoiceDelta, None]]


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """How the chunks of a streamed response are sent: each as ``encode`` writes it, and ``end`` after the last.
    ``error`` returns the chunk for an error, from its status and error object."""

    media_type: bytes
    encode: Callable[[Any], bytes]
    end: bytes
    error: Callable[[int, Mapping[str, Any]], Any]


EVENTS = StreamFormat(
    b"text/event-stream; charset=utf-8", server_sent_event, END_OF_STREAM, lambda status, error: error
)
"""OpenAI's."""


class Renderer(Protocol):
    """A response format. Its chunks are what its :class:`StreamFormat` encodes."""

    def chunks(self, delta: ChoiceDelta, usage: Usage) -> Iterator[Any]:
        """The chunks of a streamed response for one delta, with the ``usage`` so far."""
        ...

    def last_chunks(self, usage: Usage) -> Iterator[Any]:
        """The chunks after the last delta."""
        ...

    def add(self, delta: ChoiceDelta, usage: Usage) -> None:
        """Adds a delta to the complete response."""
        ...

    def whole(self, usage: Usage) -> Mapping[str, Any]:
        """The complete response, after all deltas were added."""
        ...


class AnswerResponse(Response):
    """Runs a job and sends its output as rendered by ``renderer``.

    The job and its sequences in the engine are aborted when the client disconnects or the server must stop. Errors
    before the first chunk are sent as error responses; later ones as an event, after which the stream ends.
    ``before_end`` is called after the last delta, before the response or the last chunks are sent. ``deltas`` replaces
    the output of the job, which it counts.
    """

    def __init__(
        self,
        service: Service,
        job: Job,
        renderer: Renderer,
        *,
        stream: bool,
        form: StreamFormat = EVENTS,
        before_end: BeforeEnd | None = None,
        deltas: Deltas | None = None,
    ) -> None:
        super().__init__()
        self._deltas = deltas or (lambda usage, scope: deltas_of(service, job, usage, scope))
        self._service = service
        self._renderer = renderer
        self._stream = stream
        self._form = form
        self._before_end = before_end
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        work = self._send_stream(scope, send) if self._stream else self._send_whole(scope, receive, send)
        try:
            await while_connected(work, receive, self._service.stopping)
        except ClientGone:
            scope["state"]["status"] = errors.CLIENT_GONE
        except Exception as error:
            if not self._started:
                await errors.reply(error)(scope, receive, send)
                return
            status, body, _ = errors.describe(error)
            errors.log(error, status)
            await send(_body(self._form.encode(self._form.error(status, body)) + self._form.end, more=False))

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        usage = Usage()
        answer = await _folded(self._deltas(usage, scope), usage, self._renderer, self._before_end)
        self._started = True
        await JsonResponse(answer)(scope, receive, send)

    async def _send_stream(self, scope: Scope, send: Send) -> None:
        usage, yielder, encode = Usage(), Yielder(), self._form.encode
        async with aclosing(self._deltas(usage, scope)) as deltas:
            async for delta in deltas:
                if events := b"".join(map(encode, self._renderer.chunks(delta, usage))):
                    await self._start(send)
                    await send(_body(events))
                await yielder.step()
        if self._before_end is not None:
            await self._before_end(usage)
        await self._start(send)
        await send(_body(b"".join(map(encode, self._renderer.last_chunks(usage))) + self._form.end, more=False))

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", self._form.media_type), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})


async def whole_answer(
    service: Service, job: Job, renderer: Renderer, scope: Scope, before_end: BeforeEnd | None = None
) -> Mapping[str, Any]:
    """Runs a job of the request ``scope``, and returns the complete response. Cancelling aborts it."""
    usage = Usage()
    return await _folded(deltas_of(service, job, usage, scope), usage, renderer, before_end)


async def _folded(
    output: AsyncGenerator[ChoiceDelta, None], usage: Usage, renderer: Renderer, before_end: BeforeEnd | None
) -> Mapping[str, Any]:
    yielder = Yielder()
    async with aclosing(output) as deltas:
        async for delta in deltas:
            renderer.add(delta, usage)
            await yielder.step()
    if before_end is not None:
        await before_end(usage)
    return renderer.whole(usage)


def deltas_of(service: Service, job: Job, usage: Usage, scope: Scope) -> AsyncGenerator[ChoiceDelta, None]:
    """The output of ``job``, counted in metrics. Closing it aborts the job."""
    deltas = answer(service.engine, job, usage, service.workers.readers)
    return service.metrics.observe(deltas, RequestRecord(job, usage, scope))


def _body(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}

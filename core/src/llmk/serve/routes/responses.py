"""``/v1/responses``: OpenAI's Responses API."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from llmk.api import AnswerHead, Frame, RequestError
from llmk.serve import history
from llmk.serve.generation.choice_deltas import ChoiceDelta, Usage
from llmk.serve.hosted_turns import HostedTurns
from llmk.serve.http.auth import tenant_of
from llmk.serve.http.disconnects import ClientGone, while_connected
from llmk.serve.http.errors import CLIENT_GONE, ShuttingDown
from llmk.serve.http.json_response import JsonResponse, named_event
from llmk.serve.http.openapi import body
from llmk.serve.responses import stored
from llmk.serve.responses.background import BackgroundRun
from llmk.serve.responses.hosted import HostedTool
from llmk.serve.responses.open_items import Json
from llmk.serve.responses.renderer import ResponseRenderer
from llmk.serve.responses.request import InputTokensRequest, ResponseRequest
from llmk.serve.responses.route import COUNT, RESPOND
from llmk.serve.responses.stored import RESPONSE, Turn
from llmk.serve.service import Service, service
from llmk.serve.storage.errors import StorageFull, UnknownObject
from llmk.serve.streaming import AnswerResponse, StreamFormat, deltas_of
from llmk.serve.workers.prepared_request import Generation, Rendered

if TYPE_CHECKING:
    from llmk.serve.storage.transaction import Transaction


class _ResponseId(StringConvertor):
    """The id of a response, which no other path looks like."""

    regex = "resp_[^/]+"


register_url_convertor("response", _ResponseId())
router = APIRouter(prefix="/v1/responses")
BODIES = (ResponseRequest, InputTokensRequest)

MOST_ECHO = 1 << 20
"""Bytes of what a background response repeats of its request."""
_STOPPED = {"code": "server_error", "message": "the server that made this response was stopped"}


@router.post("", openapi_extra=body(ResponseRequest))
async def create(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Responds to items, or continues a response or conversation."""
    prepared = await history.prepare(service, RESPOND, request, uuid.uuid4().hex)
    response = _Response(service, tenant_of(request.scope), prepared)
    if prepared.made.options["background"]:
        return await response.in_background(request)
    return response.in_foreground(request)


@router.post("/input_tokens", openapi_extra=body(InputTokensRequest))
async def input_tokens(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Counts the tokens of a prompt."""
    made: Rendered = (await history.prepare(service, COUNT, request, uuid.uuid4().hex)).made
    return Response(made.body, media_type="application/json")


@router.get("/{id:response}")
async def retrieve(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """A stored response, or the events of one that was made in the background."""
    query, tenant = request.query_params, tenant_of(request.scope)
    history.check_query(query, "stream", "starting_after", "include", "include[]", "include_obfuscation")
    run = service.background.get(tenant, id)
    if query.get("stream", "false") == "true":
        return await _replayed(service, tenant, id, run, _number(query.get("starting_after")))
    if run is not None:
        return JsonResponse(run.response)
    return Response(await _stored(service, tenant, id), media_type="application/json")


@router.delete("/{id:response}")
async def delete(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Deletes a stored response; one that is being made in the background is cancelled."""
    tenant = tenant_of(request.scope)
    if (run := service.background.get(tenant, id)) is not None:
        await run.cancel()
    await service.storage.run(lambda to: to.delete(tenant, RESPONSE, id), tenant)
    return JsonResponse({"id": id, "object": "response", "deleted": True})


@router.post("/{id:response}/cancel")
async def cancel(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Cancels a response that is being made in the background. One that has ended stays as it is."""
    tenant = tenant_of(request.scope)
    if (run := service.background.get(tenant, id)) is not None:
        return JsonResponse(await run.cancel())
    turn = await service.storage.run(lambda to: stored.get_turn(to, tenant, id), tenant)
    if not turn.background:
        raise RequestError("only a background response can be cancelled", param="id", hint="end the connection")
    return Response(await _stored(service, tenant, id), media_type="application/json")


@router.get("/{id:response}/input_items")
async def input_items(id: str, request: Request, service: Annotated[Service, Depends(service)]) -> Response:
    """Lists the items of a response's request."""
    tenant, page = tenant_of(request.scope), history.page_of(request.query_params)
    items, ids, has_more = await service.storage.run(lambda to: stored.input_page(to, tenant, id, page), tenant)
    return history.listed(items, ids, has_more=has_more)


class _Response:
    """A response that is being made, and what is stored of it."""

    def __init__(self, service: Service, tenant: str, prepared: history.Prepared) -> None:
        made: Generation = prepared.made
        options = made.options
        self._service = service
        self._tenant = tenant
        self._made = made
        self._items = [text.encode() for text in options.pop("input")]
        self._stores = service.storage.is_available if options["store"] is None else options["store"]
        self._id = stored.response_id(made.context.id)
        head = service.head(made.context)
        echo = {**options["echo"], "store": "true" if self._stores else "false"}
        echo |= {name: str(getattr(made.params, name)) for name in ("temperature", "top_p")}
        self._renderer = ResponseRenderer(
            AnswerHead(made.context.id, head["created"], head["model"]),
            echo,
            tokens=service.engine.tokenizer if made.logprobs else None,
            encrypted=options["encrypted"],
            queued=options["background"],
            hosted=msgspec.convert(options.get("hosted", {}).get("tools", {}), dict[str, HostedTool]),
        )
        self._turns: HostedTurns | None = None
        if "hosted" in options and prepared.resolved is not None:
            given = prepared.resolved, prepared.servers, prepared.errors
            self._turns = HostedTurns(service, made, self._renderer, *given)

    def in_foreground(self, request: Request) -> Response:
        """The response, as long as its client is connected."""
        request.scope["state"]["holds_body"] = True
        chunks = _Chunks(self._renderer)
        form = StreamFormat(b"text/event-stream; charset=utf-8", _encoded, b"", chunks.error)
        return AnswerResponse(
            self._service,
            self._made.job(),
            chunks,
            stream=self._made.stream,
            form=form,
            before_end=self._save if self._stores or self._made.options["conversation"] else None,
            deltas=self._turns.deltas if self._turns else None,
        )

    async def in_background(self, request: Request) -> Response:
        """The response as it starts, or its events. It is stored before, so that it is found."""
        service, job = self._service, self._made.job()
        service.engine.check_room(job.params.n, self._tenant)
        run = BackgroundRun(self._tenant, self._renderer, self._save_end, keep_events=self._made.stream)
        queued = self._renderer.response("queued")
        response, turn = msgspec.json.encode(queued), self._turn("queued")
        if len(response) > MOST_ECHO:
            message = f"a background response has {MOST_ECHO} bytes of 'tools', 'instructions' and the like at most"
            raise RequestError(message, param="background")
        self._items = []  # They are stored until the response ends.

        def save(to: Transaction) -> None:
            stored.put_response(to, self._tenant, self._id, response, turn)

        await service.storage.run(save, self._tenant)
        scope, turns = request.scope, self._turns
        deltas = turns.deltas(run.usage, scope) if turns else deltas_of(service, job, run.usage, scope)
        service.background.start(self._id, run, deltas)
        return _Events(service, run.follow(-1)) if self._made.stream else JsonResponse(queued)

    async def _save(self, usage: Usage) -> None:
        """Stores the complete response, and adds its items to the conversation."""
        whole = self._renderer.whole(usage)
        response, turn = msgspec.json.encode(whole), self._turn(whole["status"])

        def save(to: Transaction) -> None:
            if self._stores:
                stored.put_response(to, self._tenant, self._id, response, turn)
            self._append(to, turn)

        await self._service.storage.run(save, self._tenant)

    async def _save_end(self, response: Json, events: bytes) -> None:
        """The same for a background response, in place of what was stored when it started."""
        data, turn = msgspec.json.encode(response), self._turn(response["status"])

        def save(to: Transaction) -> None:
            stored.end_response(to, self._tenant, self._id, data, turn, events)
            self._append(to, turn)

        try:
            await self._service.storage.run(save, self._tenant)
        except StorageFull as error:
            await self._save_failure(error)

    async def _save_failure(self, error: StorageFull) -> None:
        """Stores that there was no room for the response, which is lost."""
        shown = {"code": "server_error", "message": str(error)}
        response = {**self._renderer.response("failed", error=shown), "output": []}
        data, turn = msgspec.json.encode(response), Turn("failed", background=True)
        await self._service.storage.run(
            lambda to: stored.fail_response(to, self._tenant, self._id, data, turn), self._tenant
        )

    def _append(self, to: Transaction, turn: Turn) -> None:
        conversation = self._made.options["conversation"]
        if conversation and turn.status in ("completed", "incomplete"):
            stored.append(to, self._tenant, conversation, [*turn.input, *turn.output])

    def _turn(self, status: str) -> Turn:
        options = self._made.options
        output = [msgspec.json.encode(item) for item in self._renderer.output]
        return Turn(
            status,
            options["background"],
            options["previous"],
            options["conversation"],
            self._items,
            output,
            server=self._service.name,
        )


class _Chunks:
    """Follows :class:`~llmk.serve.streaming.Renderer`: a chunk is all frames of a delta."""

    def __init__(self, renderer: ResponseRenderer) -> None:
        self._renderer = renderer
        self._usage = Usage()

    def chunks(self, delta: ChoiceDelta, usage: Usage) -> Iterator[Sequence[Frame]]:
        """The frames of one delta."""
        self._usage = usage
        yield list(self._renderer.frames(delta, usage))

    def last_chunks(self, usage: Usage) -> Iterator[Sequence[Frame]]:
        """The frames after the last delta."""
        yield list(self._renderer.last_frames(usage))

    def error(self, status: int, body: Mapping[str, Any]) -> Sequence[Frame]:
        """The frames that end the stream because of an error."""
        return list(self._renderer.failed(body["error"], self._usage))

    def add(self, delta: ChoiceDelta, usage: Usage) -> None:
        """Adds a delta to the complete response."""
        self._renderer.add(delta, usage)

    def whole(self, usage: Usage) -> Mapping[str, Any]:
        """The complete response."""
        return self._renderer.whole(usage)


def _encoded(frames: Iterable[Frame]) -> bytes:
    return b"".join(map(named_event, frames))


class _Events(Response):
    """The events of a background response, as long as its client is connected. The response goes on without it."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._service = service
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        # Only what has a body can be read, so a client that left is noticed only after a POST request.
        watched = receive if scope["method"] == "POST" else _silence
        try:
            await while_connected(self._send(send), watched, self._service.stopping)
        except (ClientGone, ShuttingDown):
            scope["state"]["status"] = CLIENT_GONE

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for events in self._events:
            await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _silence() -> Message:
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def _replayed(service: Service, tenant: str, id: str, run: BackgroundRun | None, after: int) -> Response:
    """The events of a background response after the one with a number."""
    why = "only a response that was created with 'background' and 'stream' can be streamed again"
    if run is not None:
        if not run.keeps_events:
            raise RequestError(why, param="stream")
        return _Events(service, run.follow(after))
    await _stored(service, tenant, id)
    try:
        found = await service.storage.run(lambda to: to.get(tenant, stored.EVENTS, stored.events_id(id)), tenant)
    except UnknownObject:
        raise RequestError(why, param="stream") from None
    events = found.data.split(b"\n\n")[after + 1 :]
    return Response(b"\n\n".join(events), media_type="text/event-stream")


async def _stored(service: Service, tenant: str, id: str) -> bytes:
    """A stored response. One that an earlier server did not finish, or whose end could not be stored, has failed."""

    def read(to: Transaction) -> bytes:
        found, turn = to.get(tenant, RESPONSE, id), stored.get_turn(to, tenant, id)
        is_lost = found.created_at < service.created or turn.server == service.name
        if is_lost and turn.status in stored.UNFINISHED and service.background.get(tenant, id) is None:
            return msgspec.json.encode({**msgspec.json.decode(found.data), "status": "failed", "error": _STOPPED})
        return found.data

    return await service.storage.run(read, tenant)


def _number(text: str | None) -> int:
    if text is None:
        return -1
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise RequestError(f"'starting_after' is the number of an event, not {text[:20]!r}", param="starting_after")
    return int(text)

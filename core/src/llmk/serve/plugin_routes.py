"""Serves the routes of plugins."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmk.api import AnswerHead, AnswerRenderer, ApiRoute, Frame
from llmk.engine.cooperative import Yielder
from llmk.serve.generation.api_routes import PluginRoute, model_info
from llmk.serve.generation.choice_deltas import ChoiceDelta, Usage
from llmk.serve.generation.pooling_jobs import PoolingJob
from llmk.serve.http.disconnects import while_connected
from llmk.serve.http.json_response import JsonResponse, encoded, named_event
from llmk.serve.pooled_response import pooled
from llmk.serve.service import Service, service
from llmk.serve.streaming import AnswerResponse, StreamFormat
from llmk.serve.workers.prepared_request import ROUTE, Generation, Rendered

logger = logging.getLogger(__name__)


def router_of(routes: Mapping[str, PluginRoute], taken: set[tuple[str, str]]) -> APIRouter:
    """The router of ``routes``. One whose method and path are ``taken`` is left out, with a warning."""
    router = APIRouter()
    for route in routes.values():
        spec = route.spec
        if (spec.method, spec.path) in taken:
            logger.warning("%s %s of %s is not served: there is such a route", spec.method, spec.path, spec.id)
            continue
        taken.add((spec.method, spec.path))
        router.add_api_route(spec.path, _endpoint(route), methods=[spec.method], name=spec.id, description=spec.summary)
    return router


def _endpoint(route: PluginRoute) -> Callable[..., Any]:
    async def answer(request: Request, service: Annotated[Service, Depends(service)]) -> Response:
        id = request.state.route_request_id
        made = await service.prepare(ROUTE + route.spec.id, request, id)
        if isinstance(made, Rendered):
            return _plain(made.body)
        if isinstance(made, PoolingJob):
            return await while_connected(_embedded(route, service, made), request.receive, service.stopping)
        assert isinstance(made, Generation)
        form = _format_of(route, id)
        return AnswerResponse(service, made.job(), renderer(service, route, made), stream=made.stream, form=form)

    return answer


def renderer(service: Service, route: PluginRoute, made: Generation) -> RouteRenderer:
    """The renderer of a response."""
    head = service.head(made.context)
    return RouteRenderer(route.api.open(AnswerHead(made.context.id, head["created"], head["model"]), made.options))


async def _embedded(route: PluginRoute, service: Service, job: PoolingJob) -> Response:
    """The response with embeddings. A large one is encoded in parts."""
    engine = service.engine
    names = engine.model_name, tuple(engine.adapters)
    result = await pooled(service, job, encode=False)
    info = model_info(engine.boot, *names, service.dialect, created=service.created)
    return JsonResponse(await _in_parts(route.api.result(result, job.options, info), Yielder()))


async def _in_parts(data: Any, yielder: Yielder) -> Any:
    """Plain data, whose innermost lists are encoded already."""
    if isinstance(data, dict):
        return {name: await _in_parts(value, yielder) for name, value in data.items()}
    if isinstance(data, list) and data and isinstance(data[0], list | dict):
        return [await _in_parts(value, yielder) for value in data]
    await yielder.step()
    return encoded(data)


def _plain(body: bytes) -> Response:
    """JSON, or the text of a JSON string."""
    if body.startswith(b'"'):
        return PlainTextResponse(msgspec.json.decode(body))
    return Response(body, media_type="application/json")


class RouteRenderer:
    """Follows :class:`~llmk.serve.streaming.Renderer` by a plugin's renderer."""

    def __init__(self, renderer: AnswerRenderer) -> None:
        self._renderer = renderer

    def chunks(self, delta: ChoiceDelta, usage: Usage) -> Iterator[Frame]:
        """The frames of one delta."""
        yield from self._renderer.frames(delta, usage)

    def last_chunks(self, usage: Usage) -> Iterator[Frame]:
        """The frames after the last delta."""
        yield from self._renderer.last_frames(usage)

    def add(self, delta: ChoiceDelta, usage: Usage) -> None:
        """Adds a delta to the complete response."""
        self._renderer.add(delta, usage)

    def whole(self, usage: Usage) -> Mapping[str, Any]:
        """The complete response."""
        return self._renderer.whole(usage)


def _format_of(route: PluginRoute, id: str) -> StreamFormat:
    def error(status: int, body: Mapping[str, Any]) -> Frame:
        return route.api.error(status, {**body["error"], "request_id": id})

    if route.spec.framing == "ndjson":
        return StreamFormat(b"application/x-ndjson", _line, b"", error)
    return StreamFormat(b"text/event-stream; charset=utf-8", named_event, b"", error)


def _line(frame: Frame) -> bytes:
    return msgspec.json.encode(frame.data) + b"\n"


class RouteResponses:
    """Middleware of plugins' routes: gives each response its request's id, and puts every error, also those of other
    middleware, in the API's format."""

    def __init__(self, app: ASGIApp, routes: Sequence[PluginRoute]) -> None:
        self._app = app
        self._by_path = {route.spec.path: route.api for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if (api := self._by_path.get(scope.get("path", ""))) is None:
            await self._app(scope, receive, send)
            return
        id = scope.setdefault("state", {})["route_request_id"] = uuid.uuid4().hex
        await self._app(scope, receive, _RouteSend(api, id, send))


class _RouteSend:
    """Sends messages of a response. The body of an error is converted when it is complete."""

    def __init__(self, api: ApiRoute, id: str, send: Send) -> None:
        self._api = api
        self._id = id
        self._send = send
        self._start: Message = {}
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"request-id", self._id.encode())]
            self._start = {**message, "headers": headers}
            if message["status"] < 400:
                await self._send(self._start)
        elif self._start.get("status", 0) < 400:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(message)

    async def _send_error(self, message: Message) -> None:
        body = self._body and self._converted(self._start["status"])
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        await self._send({**self._start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self._send({**message, "body": body})

    def _converted(self, status: int) -> bytes:
        try:
            error = msgspec.json.decode(self._body)["error"]
            return msgspec.json.encode(self._api.error(status, {**error, "request_id": self._id}).data)
        except Exception:
            logger.exception("an error could not be converted")
            return self._body

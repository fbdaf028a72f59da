"""The OpenAPI document: FastAPI's, completed with the routes' responses, errors and API keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmk.api import RouteSpec
from llmk.serve.http.auth import OPEN_PATHS
from llmk.serve.protocol import answers, batches, files, pooling_answers
from llmk.serve.protocol.base import Body

ANSWERS: dict[tuple[str, str], type[BaseModel] | None] = {
    ("post", "/v1/chat/completions"): answers.ChatAnswer,
    ("post", "/v1/completions"): answers.TextAnswer,
    ("post", "/v1/embeddings"): pooling_answers.EmbeddingsAnswer,
    ("post", "/pooling"): pooling_answers.PoolingAnswer,
    **{("post", f"{at}/classify"): pooling_answers.ClassesAnswer for at in ("", "/v1")},
    **{("post", f"{at}/score"): pooling_answers.ScoresAnswer for at in ("", "/v1")},
    **{("post", f"{at}/rerank"): pooling_answers.RanksAnswer for at in ("", "/v1", "/v2")},
    ("post", "/v1/responses"): None,
    ("get", "/v1/responses/{id}"): None,
    ("delete", "/v1/responses/{id}"): answers.DeletedAnswer,
    ("post", "/v1/responses/{id}/cancel"): None,
    ("get", "/v1/responses/{id}/input_items"): answers.ItemsAnswer,
    ("post", "/v1/responses/input_tokens"): answers.InputTokensAnswer,
    ("post", "/v1/conversations"): answers.ConversationAnswer,
    ("get", "/v1/conversations/{id}"): answers.ConversationAnswer,
    ("post", "/v1/conversations/{id}"): answers.ConversationAnswer,
    ("delete", "/v1/conversations/{id}"): answers.DeletedAnswer,
    ("post", "/v1/conversations/{id}/items"): answers.ItemsAnswer,
    ("get", "/v1/conversations/{id}/items"): answers.ItemsAnswer,
    ("get", "/v1/conversations/{id}/items/{item_id}"): None,
    ("delete", "/v1/conversations/{id}/items/{item_id}"): answers.ConversationAnswer,
    ("get", "/v1/io"): answers.ProcessorsAnswer,
    ("post", "/v1/io/{name}"): None,
    ("get", "/v1/models"): answers.ModelsAnswer,
    ("get", "/v1/models/{id}"): answers.ModelAnswer,
    ("post", "/v1/files"): files.FileAnswer,
    ("get", "/v1/files"): files.FilesAnswer,
    ("get", "/v1/files/{id}"): files.FileAnswer,
    ("get", "/v1/files/{id}/content"): None,
    ("delete", "/v1/files/{id}"): files.FileDeletedAnswer,
    ("post", "/v1/batches"): batches.BatchAnswer,
    ("get", "/v1/batches"): batches.BatchesAnswer,
    ("get", "/v1/batches/{id}"): batches.BatchAnswer,
    ("post", "/v1/batches/{id}/cancel"): batches.BatchAnswer,
    ("post", "/v1/cache/pins"): answers.PinAnswer,
    ("get", "/v1/cache/pins"): answers.PinsAnswer,
    ("delete", "/v1/cache/pins/{id}"): answers.UnpinnedAnswer,
    ("get", "/health"): answers.HealthAnswer,
    ("get", "/ping"): answers.HealthAnswer,
    ("get", "/version"): answers.VersionAnswer,
    ("get", "/server_info"): answers.ServerAnswer,
    ("post", "/invocations"): None,
    ("get", "/v1/plan"): None,
    ("post", "/tokenize"): answers.TokensAnswer,
    ("get", "/tokenizer_info"): None,
    ("post", "/detokenize"): answers.PromptAnswer,
}
"""The schema of each route's JSON response; ``None``: any object."""
WITHOUT_BODY = frozenset({"/v1/batches/{id}/cancel", "/v1/responses/{id}/cancel"})
"""Paths of POST requests without a body."""
DOWNLOADS = frozenset({"/v1/files/{id}/content"})
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/{id}", "/invocations")
ADMIN_PATH = "/v1/cache/pins"
ERRORS = {
    400: "The request is invalid; `param` names the field.",
    401: "No valid API key.",
    403: "For operators only.",
    404: "There is no such model, pin, processor or stored object.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON, or not the form of an upload, or is compressed.",
    421: "The Host header is not allowed.",
    429: "Too many requests are running or waiting; `retry-after` says when to try again.",
    500: "The server failed.",
    503: "The engine has ended, or the server is stopping.",
    504: "The request was not started or finished in time.",
}
_READING = frozenset({400, 408, 413, 415, 429, 504})
"""Errors of routes that read a body."""
_JSON = "application/json"
_STREAMS = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}
"""Content types of plugins' streams, by framing."""
_PLACE = "#/components/schemas/{model}"


def body(*schemas: type[Body]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route whose body is one of ``schemas``. FastAPI doesn't know them, since workers parse
    the body.
    """
    places = [{"$ref": _PLACE.format(model=schema.__name__)} for schema in schemas]
    content = {_JSON: {"schema": places[0] if len(places) == 1 else {"anyOf": places}}}
    return {"requestBody": {"required": True, "content": content}}


def form(schema: type[Body]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route whose body is a form."""
    content = {"multipart/form-data": {"schema": {"$ref": _PLACE.format(model=schema.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def install(app: FastAPI, *bodies: type[Body], with_keys: bool, plugins: Sequence[RouteSpec] = ()) -> None:
    """Completes the document of ``app``, whose routes accept ``bodies``, and those of ``plugins`` any object."""
    framings = {(spec.method.lower(), spec.path): spec.framing for spec in plugins}
    derive = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(derive(), bodies, framings, with_keys=with_keys)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    app.router.routes.insert(0, Route(str(app.openapi_url), DocumentRoute(app).get, include_in_schema=False))


class DocumentRoute:
    """``/openapi.json``. A thread builds it when it is first requested, since that takes a quarter of a second in which
    nothing else would be answered, and it is kept as it is sent."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._built: asyncio.Future[bytes] | None = None

    async def get(self, request: Request) -> Response:
        """The document."""
        if self._built is None:
            self._built = asyncio.ensure_future(asyncio.to_thread(self._build))
        return Response(await asyncio.shield(self._built), media_type=_JSON)

    def _build(self) -> bytes:
        return json.dumps(self._app.openapi(), ensure_ascii=False).encode()


def complete(
    document: dict[str, Any],
    bodies: Sequence[type[Body]],
    framings: Mapping[tuple[str, str], str],
    *,
    with_keys: bool,
) -> dict[str, Any]:
    """Adds bodies, responses, errors and keys to ``document``. ``framings`` are those of plugins' routes."""
    shapes = [shape for shape in (*bodies, *ANSWERS.values(), answers.ErrorAnswer) if shape is not None]
    _, made = models_json_schema([(shape, "validation") for shape in shapes], ref_template=_PLACE)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= made["$defs"]
    schemes: dict[str, Any] = {"admin": {"type": "apiKey", "in": "header", "name": "x-admin-key"}}
    if with_keys:
        schemes["key"] = {"type": "http", "scheme": "bearer"}
    components["securitySchemes"] = schemes
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method == "post" and path not in WITHOUT_BODY:
                # The bodies of these routes are defined by plugins.
                body = {"required": True, "content": {_JSON: {"schema": {"type": "object"}}}}
                operation.setdefault("requestBody", body)
            framing = framings.get((method, path))
            queried = "parameters" in operation
            operation["responses"] = dict(_responses(method, path, framing, with_keys, queried=queried))
            needs: dict[str, list[str]] = {"admin": []} if path.startswith(ADMIN_PATH) else {}
            if with_keys and path not in OPEN_PATHS:
                needs["key"] = []
            operation["security"] = [needs] if needs else []
    _link(document, ADMIN_PATH, {"unpin": ("delete", f"{ADMIN_PATH}/{{id}}")})
    _link(document, "/v1/files", {"get": ("get", "/v1/files/{id}"), "delete": ("delete", "/v1/files/{id}")})
    batch = "/v1/batches/{id}"
    _link(document, "/v1/batches", {"get": ("get", batch), "cancel": ("post", f"{batch}/cancel")})
    return document


def _link(document: dict[str, Any], created: str, links: dict[str, tuple[str, str]]) -> None:
    """Says which routes take the id of what a POST to ``created`` creates."""
    paths = document["paths"]
    paths[created]["post"]["responses"]["200"]["links"] = {
        name: {"operationId": paths[path][method]["operationId"], "parameters": {"id": "$response.body#/id"}}
        for name, (method, path) in links.items()
    }


def _responses(
    method: str, path: str, framing: str | None, with_keys: bool, *, queried: bool
) -> Iterator[tuple[str, Any]]:
    content = _plugin_content(framing) if framing else _content(method, path)
    yield "200", {"description": "The response.", "content": dict(content)}
    shape = {"type": "object"} if framing else {"$ref": "#/components/schemas/ErrorAnswer"}
    for status, why in ERRORS.items():
        if status in _READING and method != "post" and not (queried and status == 400):
            continue
        if (status == 401 and not with_keys) or (status == 403 and not path.startswith(ADMIN_PATH)):
            continue
        yield str(status), {"description": why, "content": {_JSON: {"schema": shape}}}


def _content(method: str, path: str) -> Iterator[tuple[str, Any]]:
    if path == "/metrics":
        yield "text/plain", {"schema": {"type": "string"}}
        return
    if path in DOWNLOADS:
        yield "application/octet-stream", {"schema": {"type": "string", "format": "binary"}}
        return
    shape = ANSWERS.get((method, path))
    schema = {"$ref": f"#/components/schemas/{shape.__name__}"} if shape else {"type": "object"}
    yield _JSON, {"schema": schema}
    if path in STREAMED:
        yield "text/event-stream", {"schema": {"type": "string", "description": "Chunks, if `stream` is true."}}


def _plugin_content(framing: str) -> Iterator[tuple[str, Any]]:
    """What a plugin's route returns: its own JSON, a text, or a stream."""
    yield _JSON, {"schema": {"type": "object"}}
    yield "text/plain", {"schema": {"type": "string"}}
    yield _STREAMS[framing], {"schema": {"type": "string", "description": "Chunks of a streamed response."}}

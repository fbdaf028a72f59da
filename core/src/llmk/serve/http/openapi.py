"""The OpenAPI document: FastAPI's, completed with the routes' responses, errors and API keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from llmk.serve.http.auth import OPEN_PATHS
from llmk.serve.protocol import answers
from llmk.serve.protocol.base import Body

ANSWERS: dict[tuple[str, str], type[BaseModel] | None] = {
    ("post", "/v1/chat/completions"): answers.ChatAnswer,
    ("post", "/v1/completions"): answers.TextAnswer,
    ("get", "/v1/io"): answers.ProcessorsAnswer,
    ("post", "/v1/io/{name}"): None,
    ("get", "/v1/models"): answers.ModelsAnswer,
    ("get", "/v1/models/{id}"): answers.ModelAnswer,
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
"""The schema of each route's JSON response; ``None``: any object, as for routes of plugins."""
STREAMED = ("/v1/chat/completions", "/v1/completions", "/invocations")
ADMIN_PATH = "/v1/cache/pins"
ERRORS = {
    400: "The request is invalid; `param` names the field.",
    401: "No valid API key.",
    403: "For operators only.",
    404: "There is no such model, pin or processor.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON, or is compressed.",
    421: "The Host header is not allowed.",
    429: "Too many requests are running or waiting; `retry-after` says when to try again.",
    500: "The server failed.",
    503: "The engine has ended, or the server is stopping.",
    504: "The request was not started or finished in time.",
}
_READING = frozenset({400, 408, 413, 415, 429, 504})
"""Errors of routes that read a body."""
_JSON = "application/json"
_PLACE = "#/components/schemas/{model}"


def body(*schemas: type[Body]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route whose body is one of ``schemas``. FastAPI doesn't know them, since workers parse
    the body.
    """
    places = [{"$ref": _PLACE.format(model=schema.__name__)} for schema in schemas]
    content = {_JSON: {"schema": places[0] if len(places) == 1 else {"anyOf": places}}}
    return {"requestBody": {"required": True, "content": content}}


def install(app: FastAPI, *bodies: type[Body], with_keys: bool) -> None:
    """Completes the document of ``app``, whose routes accept ``bodies``."""
    derive = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(derive(), bodies, with_keys=with_keys)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def complete(document: dict[str, Any], bodies: Sequence[type[Body]], *, with_keys: bool) -> dict[str, Any]:
    """Adds bodies, responses, errors and keys to ``document``."""
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
            if method == "post":
                # The bodies of these routes are defined by plugins.
                body = {"required": True, "content": {_JSON: {"schema": {"type": "object"}}}}
                operation.setdefault("requestBody", body)
            operation["responses"] = dict(_responses(method, path, with_keys))
            needs: dict[str, list[str]] = {"admin": []} if path.startswith(ADMIN_PATH) else {}
            if with_keys and path not in OPEN_PATHS:
                needs["key"] = []
            operation["security"] = [needs] if needs else []
    pins = document["paths"]
    unpin = pins[f"{ADMIN_PATH}/{{id}}"]["delete"]["operationId"]
    link = {"operationId": unpin, "parameters": {"id": "$response.body#/id"}}
    pins[ADMIN_PATH]["post"]["responses"]["200"]["links"] = {"unpin": link}
    return document


def _responses(method: str, path: str, with_keys: bool) -> Iterator[tuple[str, Any]]:
    yield "200", {"description": "The response.", "content": dict(_content(method, path))}
    for status, why in ERRORS.items():
        if status in _READING and method != "post":
            continue
        if (status == 401 and not with_keys) or (status == 403 and not path.startswith(ADMIN_PATH)):
            continue
        shape = {"$ref": "#/components/schemas/ErrorAnswer"}
        yield str(status), {"description": why, "content": {_JSON: {"schema": shape}}}


def _content(method: str, path: str) -> Iterator[tuple[str, Any]]:
    if path == "/metrics":
        yield "text/plain", {"schema": {"type": "string"}}
        return
    shape = ANSWERS.get((method, path))
    schema = {"$ref": f"#/components/schemas/{shape.__name__}"} if shape else {"type": "object"}
    yield _JSON, {"schema": schema}
    if path in STREAMED:
        yield "text/event-stream", {"schema": {"type": "string", "description": "Chunks, if `stream` is true."}}

"""What the server's page says of routes, request fields and errors, from the routers, request models and errors."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from config_reference import type_name
from docstrings import prose
from fastapi.routing import APIRoute
from generated import Page, code, table
from pydantic.fields import FieldInfo

import llmk.serve.routes
import llmk.serve.workers
from llmk.api import LlmkError
from llmk.serve.batches import routes as batches
from llmk.serve.http.auth import OPEN_PATHS
from llmk.serve.http.errors import error_object
from llmk.serve.protocol.base import RequestModel
from llmk.serve.protocol.batches import BatchRequest
from llmk.serve.protocol.chat import ChatRequest, Function, Message
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.protocol.files import FileForm
from llmk.serve.protocol.pins import PinRequest
from llmk.serve.protocol.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    InputFields,
    PooledFields,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from llmk.serve.protocol.sampling import SamplingFields, SamplingParamFields, StreamOptions
from llmk.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest
from llmk.serve.responses.request import (
    ConversationRequest,
    ConversationUpdate,
    InputTokensRequest,
    ItemsRequest,
    ResponseRequest,
)
from llmk.serve.service import admin

POOLING: dict[str, type[RequestModel]] = {
    "pooled": PooledFields,
    "input": InputFields,
    "embed": EmbeddingRequest,
    "pool": PoolingRequest,
    "classify": ClassifyRequest,
    "score": ScoreRequest,
    "rerank": RerankRequest,
}
"""Those on the page about pooling."""
MODELS: dict[str, type[RequestModel]] = {
    "shared": SamplingFields,
    "stream_options": StreamOptions,
    "chat": ChatRequest,
    "message": Message,
    "function": Function,
    "completion": CompletionRequest,
    "response": ResponseRequest,
    "input_tokens": InputTokensRequest,
    "conversation": ConversationRequest,
    "conversation_update": ConversationUpdate,
    "conversation_items": ItemsRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
    "pin": PinRequest,
    "file": FileForm,
    "batch": BatchRequest,
    **POOLING,
}


def pages() -> Iterator[Page]:
    """The server's page, and that about pooling."""
    blocks = {"routes": routes, "errors": errors}
    makers = {name: partial(fields, model) for name, model in MODELS.items()}
    blocks |= {name: maker for name, maker in makers.items() if name not in POOLING}
    yield Page("docs/serving.md", {f"http_reference.py {name}": maker for name, maker in blocks.items()})
    yield Page("docs/pooling.md", {f"http_reference.py {name}": makers[name] for name in POOLING})


def routes() -> str:
    """Every route, who may use it, and what it does."""
    rows = []
    for route in routes_of_the_server():
        closed = "admin keys" if any(depends.dependency is admin for depends in route.dependencies) else "API keys"
        methods = " ".join(sorted(route.methods or ()))
        told = prose(route.description).replace("\n", " ")
        rows.append((f"`{methods} {route.path}`", "anyone" if route.path in OPEN_PATHS else closed, told))
    return table(("route", "open to", "what it does"), rows)


def routes_of_the_server() -> Iterator[APIRoute]:
    """The routes of all routers."""
    package = llmk.serve.routes
    modules = [import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    for module in (*modules, batches):
        for route in module.router.routes:
            if isinstance(route, APIRoute):
                yield route


def bodies(route: APIRoute) -> list[type[RequestModel]]:
    """The request models that a route takes."""
    names = set(re.findall(r"/schemas/(\w+)", json.dumps(route.openapi_extra or {})))
    return [kind for kind in _narrower(RequestModel) if kind.__name__ in names]


def _narrower(kind: type[RequestModel]) -> Iterator[type[RequestModel]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _narrower(child)


def fields(model: type[RequestModel]) -> str:
    """The fields of a request model that are its own: those that are honoured, and those that are refused."""
    properties = model.model_json_schema()["properties"]
    own = [name for name in model.model_fields if name not in _inherited(model)]
    described = any(model.model_fields[name].description for name in own)
    rows = []
    for name in own:
        field = model.model_fields[name]
        meaning = [field.description or ""] if described else []
        rows.append((f"`{name}`", type_name(properties[name]), _default(field), *meaning))
    parts = [table(("field", "type", "default", *(["meaning"] if described else [])), rows)] if rows else []
    if model.refused:
        refused = [
            (f"`{name}`", refusal.why, code(*map(json.dumps, refusal.neutral)))
            for name, refusal in model.refused.items()
        ]
        parts.append(table(("refused", "because", "unless it is null or"), refused))
    if model.taken:
        parts.append(f"Taken as clients send them back, without effect: {code(*sorted(model.taken))}.")
    return "\n\n".join(parts)


def errors() -> str:
    """What a client may meet, by status."""
    for module in pkgutil.iter_modules(llmk.serve.workers.__path__, "llmk.serve.workers."):
        import_module(module.name)
    found = sorted(set(_known(LlmkError)), key=lambda error: (error.http_status, error.code))
    rows = []
    for error in found:
        kind = error_object("", error.http_status)["error"]["type"]
        rows.append((error.http_status, f"`{kind}`", f"`{error.code}`", prose(error.__doc__).split("\n\n")[0]))
    return table(("status", "type", "code", "when"), ([str(c).replace("\n", " ") for c in row] for row in rows))


def _known(error: type[LlmkError]) -> Iterator[type[LlmkError]]:
    """Errors of the core that a request may end with: those that no start of the server survives have no part."""
    ours = error.__module__.startswith(("llmk.api.", "llmk.serve."))
    if error.exit_code == LlmkError.exit_code and error is not LlmkError and ours:
        yield error
    for child in error.__subclasses__():
        yield from _known(child)


def _inherited(model: type[RequestModel]) -> set[str]:
    base = model.__bases__[0]
    if base is SamplingParamFields:  # which is documented with them
        return set()
    return set(base.model_fields) if issubclass(base, RequestModel) and model.__mro__.index(base) else set()


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value: Any = field.get_default(call_default_factory=True)
    return "-" if value is None else f"`{json.dumps(value)}`"

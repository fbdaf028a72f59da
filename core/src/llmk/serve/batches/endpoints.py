"""Runs one request of a batch, as the route of its endpoint does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from llmk.api import EngineDead, Overloaded
from llmk.config.logs import request_id
from llmk.engine.wire.request import RequestContext
from llmk.serve import plugin_routes
from llmk.serve.batches.gate import Gate
from llmk.serve.http import errors
from llmk.serve.routes import chat, completions
from llmk.serve.service import Service
from llmk.serve.streaming import Renderer, whole_answer
from llmk.serve.workers.prepared_request import BATCH, ROUTE, Generation, Refused, Rendered, Work

OWN: Mapping[str, tuple[str, str, Callable[[Service, Generation], Renderer]]] = {
    "/v1/chat/completions": ("chat", "chatcmpl", chat.renderer),
    "/v1/completions": ("text", "cmpl", completions.renderer),
}
"""Kind, prefix of ids, and renderer of the core's endpoints."""
LAST = 2**31 - 1
"""The priority of batches: after all other requests of the tenant."""
RETRY_SECONDS = 1.0
TRIES = 30
"""How often a request is run until the engine survives it."""


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """The response to a request: its status and body, and the request's id in the log."""

    status: int
    body: Any
    id: str


def endpoints(service: Service) -> list[str]:
    """The endpoints that batches may have on this server."""
    return [*OWN, *(route.spec.path for route in service.routes.values() if route.spec.method == "POST")]


def work_of(service: Service, kind: str, context: RequestContext) -> Work:
    """Work for a worker."""
    return Work(kind, context, replace(service.engine.info, plan={}, pickled_plan=b""))


@dataclass(frozen=True, slots=True)
class RequestRunner:
    """Runs requests of a tenant to an ``endpoint``."""

    service: Service
    gate: Gate
    tenant: str
    endpoint: str

    async def run(self, line: bytes) -> EndedRequest:
        """Runs the request in a line of the input file; waits while the server is overloaded or the engine restarts.
        Cancelling aborts it."""
        id = uuid4().hex
        request_id.set(id)
        tries = 0
        while True:
            try:
                return EndedRequest(*await self._answer(line), id)
            except Exception as error:
                tries += not isinstance(error, Overloaded)
                if not isinstance(error, Overloaded | EngineDead) or tries == TRIES:
                    status, body, _ = errors.describe(error)
                    errors.log(error, status)
                    return EndedRequest(status, body, id)
            await asyncio.sleep(RETRY_SECONDS)

    def _endpoint(self) -> tuple[str, str, Callable[[Service, Generation], Renderer]]:
        if self.endpoint in OWN:
            return OWN[self.endpoint]
        route = next(route for route in self.service.routes.values() if route.spec.path == self.endpoint)
        return f"{ROUTE}{route.spec.id}", "batch", lambda service, made: plugin_routes.renderer(service, route, made)

    async def _answer(self, line: bytes) -> tuple[int, Any]:
        kind, prefix, open_renderer = self._endpoint()
        context = RequestContext(f"{prefix}-{uuid4().hex}", request_id.get(), self.tenant)
        made = await self.service.workers.prepare(work_of(self.service, BATCH + kind, context), line)
        if isinstance(made, Refused):
            return made.status, made.body
        if isinstance(made, Rendered):
            return 200, msgspec.Raw(made.body)
        assert isinstance(made, Generation)
        if made.stream:
            message = "'stream' is not supported in batches, whose results are complete responses"
            return 400, errors.error_object(message, 400, param="stream", code="unsupported_parameter")
        made.context = replace(made.context, priority=LAST)
        renderer = open_renderer(self.service, made)
        scope = {"type": "http", "path": self.endpoint, "headers": [], "state": {"request_id": request_id.get()}}
        with self.gate.more(len(made.prompts) * made.params.n - 1):
            return 200, await whole_answer(self.service, made.job(), renderer, scope)

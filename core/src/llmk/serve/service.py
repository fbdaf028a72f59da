"""The objects that all routes use: the engine, the model's dialect, and the state of the server."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace
from starlette.requests import Request

from llmk.config.limits_section import LimitsSection
from llmk.config.logs import request_id
from llmk.config.schema import ServerSection
from llmk.config.storage_section import StorageSection
from llmk.engine.text.io_processors import IOHost
from llmk.engine.wire.request import RequestContext
from llmk.serve.generation.api_routes import PluginRoute
from llmk.serve.generation.parsing import Dialect
from llmk.serve.generation.reading import Readers
from llmk.serve.http.auth import tenant_of
from llmk.serve.http.disconnects import while_connected
from llmk.serve.http.errors import Forbidden, check_model
from llmk.serve.http.pages import LoadedPage
from llmk.serve.metrics.prometheus import Metrics
from llmk.serve.responses.background import BackgroundRuns
from llmk.serve.responses.mcp_client import McpServers
from llmk.serve.storage.store import Storage
from llmk.serve.tenants.collector import KeyCollector
from llmk.serve.workers.prepared_request import ROUTE, Generation, Prepared, Refusal, Refused, Work

if TYPE_CHECKING:
    from llmk.engine.async_llm import AsyncLLM
    from llmk.serve.metrics.spans import Spans
    from llmk.serve.tenants.ledger import Ledger

logger = logging.getLogger(__name__)

MOST_WARNINGS = 1000
"""Unknown fields that are logged."""
_SECRET = frozenset({"authorization", "cookie", "x-admin-key", "x-api-key"})
"""Headers that plugins don't get."""


class Workers(Protocol):
    """The part of :class:`llmk.serve.workers.pool.Workers` that routes use."""

    @property
    def readers(self) -> Readers:
        """Readers, which parse generated text."""
        ...

    @property
    def io(self) -> IOHost:
        """The host of IO processors."""
        ...

    async def prepare(self, work: Work, body: bytes) -> Prepared:
        """Prepares a request, or returns the response that refuses it."""
        ...


class Service:
    """A served model. ``spans`` exports a span of each request; ``routes`` are those of plugins, by id; ``ledger`` has
    keys with quotas. ``stopping`` is set when running requests must end. ``pages`` are files for browsers, ``memory``
    is the forecast of a device's memory as plain data."""

    def __init__(
        self,
        engine: AsyncLLM,
        dialect: Dialect,
        config: ServerSection,
        workers: Workers,
        spans: Spans | None = None,
        routes: Mapping[str, PluginRoute] | None = None,
        storage: StorageSection | None = None,
        limits: LimitsSection | None = None,
        ledger: Ledger | None = None,
        pages: Sequence[LoadedPage] = (),
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self.engine = engine
        self.uploads: Counter[str] = Counter()
        """Uploads that are running, by tenant."""
        self.storage = Storage(storage or StorageSection(), engine.model_name)
        self.workers = workers
        self.config = config
        self.created = int(time.time())
        self.name = uuid.uuid4().hex
        """Differs from those of all other servers, earlier ones too."""
        self.stopping = asyncio.Event()
        self.metrics = Metrics(engine)
        if spans is not None:
            self.metrics.listeners.append(partial(spans.end, engine.model_name))
        self.ledger = ledger
        if ledger is not None:
            self.metrics.add(KeyCollector(ledger))
            self.metrics.listeners.append(ledger.charge_record)
        self.dialect = dialect
        self.routes = routes or {}
        self.pages = pages
        self.memory = memory
        self.background = BackgroundRuns()
        self.limits = limits or LimitsSection()
        self.mcp = McpServers(config.mcp, self.limits)
        self._warned: set[str] = set()

    def head(self, context: RequestContext) -> dict[str, Any]:
        """The common fields of all responses. Equal fingerprints mean equal plans, so equal seeds give equal
        results."""
        fingerprint = f"fp_{self.engine.info.plan['fingerprint'][:12]}"
        model = context.adapter or self.engine.model_name
        return {"id": context.id, "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}

    async def prepare(self, kind: str, request: Request, id: str = "", body: bytes | None = None) -> Any:
        """Has a worker prepare a request. Its content is never parsed in this process.

        ``kind`` is the kind of request; :mod:`llmk.serve.workers.prepared_request` has the results. ``body`` replaces
        that of the request.

        Raises:
            Refusal: if the request is invalid.
            ClientGone, ShuttingDown: if the client disconnects or the server stops.
        """
        info = replace(self.engine.info, plan={}, pickled_plan=b"")
        headers = _public_headers(request) if kind.startswith(ROUTE) else {}
        ignores = self.config.unknown_fields == "warn"
        work = Work(kind, context_of(request, id), info, headers, ignores)
        if request.method == "POST":
            preparing = self.workers.prepare(work, await body_of(request) if body is None else body)
            body = None
            prepared = await while_connected(preparing, request.receive, self.stopping)
        else:
            prepared = await self.workers.prepare(work, b"null")
        if isinstance(prepared, Refused):
            raise Refusal(prepared)
        if prepared.ignored:
            request.state.ignored_fields = prepared.ignored
            self._warn_of(prepared.ignored)
        if isinstance(prepared, Generation) and prepared.unenforced:
            request.state.unenforced = prepared.unenforced
        return prepared

    def _warn_of(self, fields: list[str]) -> None:
        """Logs unknown fields of requests, once each."""
        for name in fields:
            if name not in self._warned and len(self._warned) < MOST_WARNINGS:
                self._warned.add(name)
                logger.warning("requests have the unknown field %r, which has no effect", name)

    def check_model(self, name: str | None) -> None:
        """Raises :class:`~llmk.serve.http.errors.UnknownModel` for a model that is not served here."""
        check_model(name, self.engine.model_name, self.engine.adapters)


async def service(request: Request) -> Service:
    """The service behind a request, for ``Depends``, which would call a plain function in a thread."""
    found: Service = request.app.state.service
    return found


def context_of(request: Request, id: str) -> RequestContext:
    """The context of a request, as far as its body doesn't say it."""
    return RequestContext(id, request_id.get(), tenant_of(request.scope))


async def admin(request: Request) -> None:
    """Admits operators only, for ``Depends``: by a key of theirs, or by an API key with the role ``admin``. Raises
    :class:`~llmk.serve.http.errors.Forbidden` for other clients."""
    account = getattr(request.state, "account", None)
    if account is not None and account.key.role == "admin":
        return
    keys = (await service(request)).config.admin_keys
    given = request.headers.get("x-admin-key", "").encode("latin-1")
    if not given or not any(hmac.compare_digest(given, key.encode()) for key in keys):
        hint = "send one of server.admin_keys in the header 'x-admin-key'" if keys else "set server.admin_keys"
        raise Forbidden("this route is for operators only", hint=hint)


async def body_of(request: Request) -> bytes:
    """The body of a request, which nothing has read yet. It is not kept by the request, which lasts as long as the
    response is sent."""
    message = await request.receive()
    body: bytes = message.get("body", b"")
    return body


def _public_headers(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name not in _SECRET}


def new_id(prefix: str) -> str:
    """A new id in OpenAI's format."""
    return f"{prefix}-{uuid.uuid4().hex}"

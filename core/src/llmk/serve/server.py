"""The HTTP server. Its import takes a while, so it is done while the engine starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from llmk.planning.memory import forecast
from llmk.serve.app import create_app
from llmk.serve.batches.runner import Batches
from llmk.serve.http.connection import Connection
from llmk.serve.http.listener import BACKLOG
from llmk.serve.http.pages import load_pages
from llmk.serve.http.tls import Tls
from llmk.serve.metrics.access_log import AccessLog
from llmk.serve.service import Service

if TYPE_CHECKING:
    from llmk.engine.async_llm import AsyncLLM
    from llmk.serve.metrics.spans import Spans
    from llmk.serve.tenants.ledger import Ledger
    from llmk.serve.workers.pool import Workers

logger = logging.getLogger(__name__)

LAST_SECONDS = 2.0
"""Seconds in which requests that are aborted at shutdown can still send an error to their clients."""


class Server(uvicorn.Server):
    """uvicorn's server, with a drain in which aborted requests get an error, and with exit status 0."""

    def __init__(self, service: Service, tls: Tls | None = None) -> None:
        self.service = service
        self._tls = tls
        self._drain_seconds = service.config.drain_seconds
        app = create_app(service)
        config = uvicorn.Config(
            app,
            http=H11Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=service.config.keep_alive,  # type: ignore[arg-type]
            timeout_graceful_shutdown=round(self._drain_seconds + 2 * LAST_SECONDS),
        )
        super().__init__(config)
        self.batches: Batches = app.state.batches
        self._stopping = service.stopping

    @classmethod
    def of(
        cls, engine: AsyncLLM, workers: Workers, spans: Spans | None, tls: Tls | None, ledger: Ledger | None = None
    ) -> Server:
        """Creates the server for an engine, with the engine's settings."""
        config, served = engine.boot.settings.config, workers.served
        pages, memory = load_pages(engine.boot.registry), forecast(engine.boot)
        service = Service(
            *(engine, served.dialect, config.server, workers, spans, served.routes),
            *(config.storage, config.limits, ledger),
            pages=pages,
            memory=memory.to_dict() if memory else None,
        )
        return cls(service, tls)

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Listens as uvicorn does, but with :class:`Connection` and a deadline for TLS handshakes."""
        loop, section, log = asyncio.get_running_loop(), self.service.config, AccessLog(self.service.metrics)

        def connection() -> Connection:
            return Connection(self.config, self.server_state, section, log)

        context, patience = (self._tls.context, section.read_timeout) if self._tls else (None, None)
        self.servers = [
            await loop.create_server(
                connection, sock=listener, ssl=context, ssl_handshake_timeout=patience, backlog=BACKLOG
            )
            for listener in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to :mod:`llmk.serve.lifecycle`; uvicorn would end the process with the signal it caught."""
        yield

    def stop(self) -> None:
        """The first call stops accepting connections and gives running requests time; the second aborts them."""
        loop = asyncio.get_running_loop()
        if not self.should_exit:
            logger.info("shutting down; running requests have %.0f s", self._drain_seconds)
            self.should_exit = True
            loop.call_later(self._drain_seconds, self._stopping.set)
        else:
            self._stopping.set()
            loop.call_later(LAST_SECONDS, setattr, self, "force_exit", True)

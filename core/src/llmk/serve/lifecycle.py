"""The server's life: take the port, start the engine, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from llmk.api import ConfigError, PortInUse
from llmk.config import Settings, logs
from llmk.engine.async_llm import AsyncLLM
from llmk.serve.http.allowed_hosts import is_loopback
from llmk.serve.http.listener import BACKLOG, Listener, room_for
from llmk.serve.http.tls import Tls
from llmk.serve.metrics import stat_loggers
from llmk.serve.workers.pool import Workers

if TYPE_CHECKING:
    from subprocess import Popen

    from llmk.planning.boot import Boot
    from llmk.serve.metrics.spans import Spans
    from llmk.serve.service import Service

logger = logging.getLogger(__name__)

Ready = Callable[["Service", str], None]


def serve(settings: Settings, ready: Ready, spawned: Popen[bytes] | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal stops at once.

    ``spawned`` is the engine's process, where it has begun; ending it is left to the caller until there is an engine.
    ``ready`` is called with the service and the server's URL once requests are answered. Raises
    :class:`~llmk.api.PortInUse` before any model is loaded, and whatever the engine's start raises.
    """
    config = settings.config.server
    logs.setup(config.log_level, config.log_format)
    # What it warns of is what clients send, and in the access log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    tls = Tls.of(config)
    with open_spans(config.otlp_endpoint) as spans, bind(config.host, config.port) as listener:
        listener.most = room_for(config.max_connections)
        listener.most_per_client = config.max_connections_per_client
        listener.speaks_tls = tls is not None
        if not (config.api_keys or config.tls_client_ca or is_loopback(listener.getsockname()[0])):
            logger.warning(
                "this server is open: whoever reaches %s:%d can use it; set server.api_keys (or "
                "LLMK__SERVER__API_KEYS) to close it",
                *listener.getsockname()[:2],
            )
        asyncio.run(_run(settings, listener, ready, spans, spawned, tls))


@contextlib.contextmanager
def open_spans(endpoint: str) -> Iterator[Spans | None]:
    """What sends spans to ``endpoint``, if there is one. What is left is sent at the end.

    Raises :class:`~llmk.api.ConfigError` where the endpoint is no URL, or OpenTelemetry is not installed.
    """
    if not endpoint:
        yield None
        return
    if not endpoint.startswith(("http://", "https://")):
        hint = "name a collector: http://127.0.0.1:4318"
        raise ConfigError(f"server.otlp_endpoint = {endpoint!r} is no URL of HTTP", hint=hint)
    try:
        from llmk.serve.metrics.spans import Spans
    except ImportError as error:
        what = f"server.otlp_endpoint is set, but OpenTelemetry can't be imported: {error}"
        raise ConfigError(what, hint="pip install 'llmk-core[otel]'") from error
    spans = Spans(endpoint)
    try:
        yield spans
    finally:
        spans.close()


def bind(host: str, port: int) -> Listener:
    """A listening socket: from here on the port is ours, and early clients wait until the model is loaded.

    Raises :class:`~llmk.api.PortInUse`, and :class:`~llmk.api.ConfigError` where the address can't be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = Listener(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "stop what listens there, or choose another with --port (0: any free one)"
            raise PortInUse(f"port {port} of {host} is in use", hint=hint) from error
        raise ConfigError(f"can't listen on {host}:{port} (server.host, server.port): {error.strerror}") from error
    return listener


def url_of(listener: Listener) -> str:
    """Where a client on this machine finds the server."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if listener.speaks_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _run(
    settings: Settings,
    listener: Listener,
    ready: Ready,
    spans: Spans | None,
    spawned: Popen[bytes] | None,
    tls: Tls | None,
) -> None:
    workers = Workers()
    starting = asyncio.create_task(_start(settings, spawned, workers))
    http = asyncio.create_task(asyncio.to_thread(import_module, "llmk.serve.server"))
    on_signal: list[Callable[[], object]] = [starting.cancel]
    with _signals(lambda: on_signal[-1]()):
        try:
            engine = await starting
        except asyncio.CancelledError:
            logger.info("stopped before the model was loaded")
            return
        finally:
            if not starting.done() or starting.cancelled() or starting.exception():
                await workers.close()
        try:
            server = (await http).Server.of(engine, workers, spans, tls)
            on_signal.append(server.stop)
            service = server.service
            async with stat_loggers.running(engine.boot, engine.model_name, service.metrics), _renewing(tls):
                serving = asyncio.create_task(server.serve([listener]))
                while not server.started and not serving.done():
                    await asyncio.sleep(0.01)
                gc.collect()
                gc.freeze()  # what was built stays for good: collecting garbage needn't look at it again
                if not server.should_exit:
                    ready(service, url_of(listener))
                await serving
        finally:
            await asyncio.gather(engine.close(), workers.close())


async def _start(settings: Settings, spawned: Popen[bytes] | None, workers: Workers) -> AsyncLLM:
    """Starts the engine, and meanwhile the workers: what they serve is known when the plan is."""
    started: list[asyncio.Task[None]] = []

    def begin(boot: Boot) -> None:
        stat_loggers.choose(boot)
        started.append(asyncio.create_task(workers.start(boot)))

    try:
        engine = await AsyncLLM.start(settings, spawned=spawned, check=begin)
    except BaseException:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)
        raise
    try:
        await asyncio.gather(*started)
    except BaseException:
        await engine.close()
        raise
    return engine


@contextlib.asynccontextmanager
async def _renewing(tls: Tls | None) -> AsyncIterator[None]:
    """Reads the certificate again when it changes, and on SIGHUP."""
    if tls is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, tls.reload)
    watching = asyncio.create_task(tls.watch())
    try:
        yield
    finally:
        watching.cancel()
        loop.remove_signal_handler(signal.SIGHUP)


@contextlib.contextmanager
def _signals(handler: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)

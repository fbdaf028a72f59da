"""The server's lifecycle: bind the port, start the engine, serve, drain, stop."""

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

from llmk.api import ConfigError, Default, PortInUse
from llmk.config import Settings, logs
from llmk.engine.async_llm import AsyncLLM
from llmk.engine.device.heap import find_trim
from llmk.engine.processes import child_process as child
from llmk.engine.processes.engine_process import ProcessClient
from llmk.planning.boot import boot as start_up
from llmk.planning.choices.sources import fetch_ahead
from llmk.planning.packed_boot import early_setup
from llmk.serve.http.allowed_hosts import is_loopback
from llmk.serve.http.listener import BACKLOG, Listener, room_for
from llmk.serve.http.tls import Tls
from llmk.serve.metrics import stat_loggers
from llmk.serve.metrics.block_publisher import publishing
from llmk.serve.workers.pool import Workers

if TYPE_CHECKING:
    from subprocess import Popen

    from llmk.serve.metrics.spans import Spans
    from llmk.serve.service import Service
    from llmk.serve.tenants.ledger import Ledger

logger = logging.getLogger(__name__)

_ELSEWHERE = "name an address of this machine with --host: 127.0.0.1, or 0.0.0.0 for all that it has"
_LISTEN = {
    errno.EACCES: "ports below 1024 are for root: choose another with --port, such as 8000",
    errno.EPERM: "ports below 1024 are for root: choose another with --port, such as 8000",
}

STOPPED_EARLY = "stopped before the model was loaded"
_HANDLED = (signal.SIGTERM, signal.SIGINT)

Ready = Callable[["Service", str], None]


def serve(settings: Settings, ready: Ready, spawned: Popen[bytes]) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal stops at once.

    ``spawned`` is the engine's process (:mod:`llmk.engine.processes.spawn`); until there is an engine, the caller must
    end it.
    ``ready`` is called with the service and the server's URL when the server accepts requests. Raises
    :class:`~llmk.api.PortInUse` before a model is loaded, and the exceptions of the engine's start.
    """
    config = settings.config.server
    logs.setup(config.log_level, config.log_format)
    # Its warnings are about invalid requests of clients, which are in the access log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    tls = Tls.of(config)
    with (
        open_ledger(settings.config.tenants.database) as ledger,
        bind(config.host, config.port) as listener,
    ):
        listener.most = room_for(config.max_connections)
        listener.most_per_client = config.max_connections_per_client
        listener.speaks_tls = tls is not None
        if not (config.api_keys or ledger or config.tls_client_ca or is_loopback(listener.getsockname()[0])):
            logger.warning(
                "this server is open: every client that can reach %s:%d can use it; set server.api_keys (or "
                "LLMK__SERVER__API_KEYS) to require a key",
                *listener.getsockname()[:2],
            )
        exporter_of(config.otlp_endpoint)
        fetch_ahead(settings)
        try:
            with _interruptible():
                workers = _load(_weighted(settings, ledger), spawned)
                with open_spans(config.otlp_endpoint) as spans:  # after the fork
                    asyncio.run(_run(workers, listener, ready, spans, spawned, tls, ledger))
        except KeyboardInterrupt:
            logger.info(STOPPED_EARLY)


def _load(settings: Settings, spawned: Popen[bytes]) -> Workers:
    """Resolves the plan, and loads what requests are prepared with, into this process and the one that workers are
    forked from: they share what is imported and loaded here, before there are threads and an event loop."""
    with logs.timed("plan"):
        boot = start_up(settings, verify=False)
    child.set_up_early(spawned, early_setup(boot))
    stat_loggers.choose(boot)
    import_module("llmk.serve.server")  # for both processes
    with logs.timed("tokenizer"):
        return Workers(boot)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Both signals raise KeyboardInterrupt, until an event loop handles them."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def open_ledger(database: str) -> Iterator[Ledger | None]:
    """The keys of the ``database``, if there is one; what they used is saved on exit. Raises
    :class:`~llmk.api.ConfigError` if it can't be used."""
    if not database:
        yield None
        return
    from llmk.serve.tenants.key_store import KeyStore
    from llmk.serve.tenants.ledger import Ledger

    ledger = Ledger(KeyStore(database))
    if not ledger.accounts():
        logger.warning("the database of keys has none, so that requests are refused: llmk keys create NAME")
    try:
        yield ledger
    finally:
        ledger.close()


def _weighted(settings: Settings, ledger: Ledger | None) -> Settings:
    """Adds the weights of keys, of which those in the configuration take precedence."""
    keys = [account.key for account in ledger.accounts()] if ledger else []
    weights = {key.tenant: key.weight for key in keys if key.weight != 1.0}
    if not weights:
        return settings
    return settings.with_defaults([("keys", Default("scheduler.weights", weights, "llmk keys"))])


@contextlib.contextmanager
def open_spans(endpoint: str) -> Iterator[Spans | None]:
    """The exporter of spans to ``endpoint``, if there is one. Remaining spans are sent on exit.

    Raises what :func:`exporter_of` raises.
    """
    make = exporter_of(endpoint)
    if make is None:
        yield None
        return
    spans = make(endpoint)
    try:
        yield spans
    finally:
        spans.close()


def exporter_of(endpoint: str) -> type[Spans] | None:
    """What exports spans to ``endpoint``, if there is one. It has a thread once it is made.

    Raises :class:`~llmk.api.ConfigError` if the endpoint is not a URL, or OpenTelemetry is not installed.
    """
    if not endpoint:
        return None
    if not endpoint.startswith(("http://", "https://")):
        hint = "name a collector: http://127.0.0.1:4318"
        raise ConfigError(f"server.otlp_endpoint = {endpoint!r} is not an HTTP URL", hint=hint)
    try:
        from llmk.serve.metrics.spans import Spans
    except ImportError as error:
        what = f"server.otlp_endpoint is set, but OpenTelemetry can't be imported: {error}"
        raise ConfigError(what, hint="pip install 'llmk-core[otel]'") from error
    return Spans


def bind(host: str, port: int) -> Listener:
    """A listening socket. From now on the port is taken, and early clients wait until the model is loaded.

    An address of IPv6 may be in brackets, as in URLs.

    Raises :class:`~llmk.api.PortInUse`, or :class:`~llmk.api.ConfigError` for other errors.
    """
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = Listener(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "stop the process that listens there, or choose another port with --port (0: any free one)"
            raise PortInUse(f"port {port} of {host} is in use", hint=hint) from error
        message = f"can't listen on {host}:{port} (server.host, server.port): {error.strerror}"
        raise ConfigError(message, hint=_LISTEN.get(error.errno or 0, _ELSEWHERE)) from error
    return listener


def url_of(listener: Listener) -> str:
    """The server's URL for clients on this machine."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if listener.speaks_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _run(
    workers: Workers,
    listener: Listener,
    ready: Ready,
    spans: Spans | None,
    spawned: Popen[bytes],
    tls: Tls | None,
    ledger: Ledger | None,
) -> None:
    from llmk.serve.server import Server

    starting = asyncio.create_task(_start(workers, spawned))
    on_signal: list[Callable[[], object]] = [starting.cancel]
    with _signals(lambda: on_signal[-1]()):
        try:
            engine = await starting
        except asyncio.CancelledError:
            logger.info(STOPPED_EARLY)
            return
        finally:
            if not starting.done() or starting.cancelled() or starting.exception():
                await workers.close()
        try:
            server = Server.of(engine, workers, spans, tls, ledger)
            on_signal.append(server.stop)
            service = server.service
            stats = stat_loggers.running(engine.boot, engine.model_name, service.metrics)
            async with (
                contextlib.aclosing(service.storage),
                contextlib.aclosing(service.background),
                server.batches.running(),
                stats,
                publishing(engine.boot.settings.config.events, engine.block_listeners),
                _renewing(tls),
            ):
                serving = asyncio.create_task(server.serve([listener]))
                while not server.started and not serving.done():
                    await asyncio.sleep(0.01)
                gc.collect()
                if trim := find_trim():
                    trim()  # what reading the tokenizer took would else stay with this process
                gc.freeze()  # objects created so far are permanent: excluded from garbage collection
                if not server.should_exit:
                    ready(service, url_of(listener))
                await serving
        finally:
            await asyncio.gather(engine.close(), workers.close())


async def _start(workers: Workers, spawned: Popen[bytes]) -> AsyncLLM:
    """Starts the workers and the engine."""
    process = ProcessClient(spawned)
    try:
        await workers.start()
    except BaseException:
        await process.close()
        raise
    return await AsyncLLM.launch(workers.served.boot, workers.served.tokenizer, process)


@contextlib.asynccontextmanager
async def _renewing(tls: Tls | None) -> AsyncIterator[None]:
    """Reloads the certificate when its file changes, and on SIGHUP."""
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
    for number in _HANDLED:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in _HANDLED:
            loop.remove_signal_handler(number)

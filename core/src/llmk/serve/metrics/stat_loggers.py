"""Tells stat loggers of plugins the numbers that ``/metrics`` shows, beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from llmk.api import OK, PluginError, Reason, StatLogger, StatLoggerContext, StatLoggerSpec, StatsSnapshot
from llmk.api.errors import describe
from llmk.config.schema import SelectSection
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registered
from llmk.planning.selection import elect

if TYPE_CHECKING:
    from llmk.planning.boot import Boot
    from llmk.serve.metrics.prometheus import Metrics

logger = logging.getLogger(__name__)

LAST_SECONDS = 2.0
"""What loggers get for the last snapshot when the server ends."""


def choose(boot: Boot) -> list[Registered[StatLoggerSpec]]:
    """Those that ``server.stat_loggers`` names by id or name, all of which can be imported.

    Raises :class:`~llmk.api.SelectionError` for a name that nothing or several have, :class:`~llmk.api.PluginError`.
    """
    known = [(found, OK) for found in boot.registry.of(StatLoggerSpec)]
    rules = [SelectSection(use=name) for name in boot.settings.config.server.stat_loggers]
    chosen = [found for found, _ in (elect("[server] stat_loggers", rule, known) for rule in rules) if found]
    for found in chosen:
        _load(found)
    return chosen


@contextlib.asynccontextmanager
async def running(boot: Boot, model_name: str, metrics: Metrics) -> AsyncIterator[None]:
    """Makes the configured loggers, and tells them until the end. Raises :class:`~llmk.api.PluginError` where one can't
    be made."""
    config = boot.settings.config
    async with contextlib.AsyncExitStack() as stack:
        guarded = []
        for found in choose(boot):
            options = config.plugin.get(found.plugin.name, {})
            made = _make(found, StatLoggerContext(model_name, config.server.stat_interval, options))
            failed = metrics.stat_logger_failures.labels(found.spec.id).inc
            guarded.append(GuardedLogger(made, f"{found.spec.id} of {found.plugin.wheel}", failed))
            stack.push_async_callback(asyncio.to_thread, guarded[-1].close, metrics.snapshot)
        if guarded:
            telling = asyncio.create_task(_tell(guarded, metrics, config.server.stat_interval), name="llmk-stats")
            stack.callback(telling.cancel)
        yield


async def _tell(loggers: list[GuardedLogger], metrics: Metrics, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        snapshot = metrics.snapshot()
        for each in loggers:
            each.offer(snapshot)


def _make(found: Registered[StatLoggerSpec], context: StatLoggerContext) -> StatLogger:
    spec, wheel = found.spec, found.plugin.wheel
    make = _load(found)
    try:
        return make(context)
    except PluginError:
        raise
    except Exception as error:
        reason = Reason("stat_logger_raised", spec.implementation, describe(error))
        hint = "take it out of server.stat_loggers, or mend its section of the configuration"
        raise PluginError(f"{spec.id} of {wheel} can't be made", reasons=[reason], hint=hint) from error


def _load(found: Registered[StatLoggerSpec]) -> Callable[[StatLoggerContext], StatLogger]:
    spec = found.spec
    made: Callable[[StatLoggerContext], StatLogger] = load_object(
        spec.implementation, plugin=found.plugin, kind="stat_logger", id=spec.id
    )
    return made


class GuardedLogger:
    """A logger in a thread of its own. The first thing that it raises is logged, with its traceback, and counted by
    ``failed``; it is told nothing more."""

    def __init__(self, made: StatLogger, name: str, failed: Callable[[], object]) -> None:
        self._logger = made
        self._name = name
        self._failed = failed
        self._snapshots: SimpleQueue[StatsSnapshot | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"llmk-stats {name}", daemon=True)
        self._thread.start()

    def offer(self, snapshot: StatsSnapshot) -> None:
        """Passes a snapshot on, unless one waits already."""
        if self._thread.is_alive() and self._snapshots.empty():
            self._snapshots.put(snapshot)

    def close(self, last: Callable[[], StatsSnapshot]) -> None:
        """Passes a last snapshot on and closes the logger, in so far as it takes no longer than it may."""
        self._snapshots.put(last())
        self._snapshots.put(None)
        self._thread.join(LAST_SECONDS)
        if self._thread.is_alive():
            logger.warning("the stat logger %s did not end within %.0f s, and is left behind", self._name, LAST_SECONDS)

    def _run(self) -> None:
        try:
            try:
                while (snapshot := self._snapshots.get()) is not None:
                    self._logger.record(snapshot)
            finally:
                self._logger.close()
        except Exception as error:
            self._failed()
            logger.warning(
                "the stat logger %s failed (%s), and is told nothing more until the server is started again",
                self._name, describe(error), exc_info=error,
            )  # fmt: skip

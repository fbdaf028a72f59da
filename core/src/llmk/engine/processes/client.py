"""How a front end talks to an engine, whether that runs in its own process or in this one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from llmk.engine.processes.output_queue import OutputQueue
from llmk.engine.wire.engine_info import EngineInfo, Outage
from llmk.engine.wire.plugin_calls import Culprit
from llmk.engine.wire.request import EngineRequest


class EngineClient(Protocol):
    """The one interface. Where the engine is gone, every method but :meth:`close` raises
    :class:`~llmk.api.EngineDead` with the cause.
    """

    outputs: OutputQueue
    """The outputs of the engine's steps, until it is dead."""
    culprit: Culprit | None
    """The plugin's code that ended the engine, where that is known."""

    @property
    def info(self) -> EngineInfo:
        """What a front end must know of the engine."""
        ...

    @property
    def outage(self) -> Outage | None:
        """Set while there is no engine, but one is to come."""
        ...

    async def add(self, requests: list[EngineRequest]) -> None:
        """Queues sequences."""
        ...

    async def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences; unknown ids are ignored. No further output of theirs is delivered."""
        ...

    async def unpin(self, ids: Iterable[str]) -> None:
        """Ends pins; unknown ids are ignored."""
        ...

    def check_health(self) -> float:
        """Says at once for how many seconds a step has been running without a sign of life; raises
        :class:`~llmk.api.EngineDead` where the engine is not well.
        """
        ...

    async def close(self) -> None:
        """Stops the engine and frees what it holds. Idempotent."""
        ...

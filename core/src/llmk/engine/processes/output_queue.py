"""The one queue between an engine and the front end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llmk.api import EngineDead
from llmk.engine.wire.request import EngineOutputs

Cause = Callable[[], EngineDead]
"""Makes the error that every later call fails with: a new one each time, so that tracebacks don't pile up on one."""


class OutputSink(Protocol):
    """Where a client puts what its engine sends."""

    def put(self, outputs: EngineOutputs) -> None:
        """Takes the outputs of a step."""
        ...

    def end(self, cause: Cause) -> None:
        """The engine is dead: nothing follows."""
        ...


class OutputQueue:
    """Keeps outputs until they are awaited, in their order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[EngineOutputs | Cause] = asyncio.Queue()

    def put(self, outputs: EngineOutputs) -> None:
        """Takes the outputs of a step."""
        self._queue.put_nowait(outputs)

    def end(self, cause: Cause) -> None:
        """Nothing follows: awaiting more raises what ``cause`` returns."""
        self._queue.put_nowait(cause)

    @property
    def has_more(self) -> bool:
        """Whether outputs wait."""
        return not self._queue.empty()

    async def next(self) -> EngineOutputs:
        """Waits for the next outputs. Raises :class:`~llmk.api.EngineDead` after the last."""
        outputs = await self._queue.get()
        if isinstance(outputs, EngineOutputs):
            return outputs
        self._queue.put_nowait(outputs)
        raise outputs()

    def forward(self, sink: OutputSink) -> None:
        """Moves what is in the queue to ``sink``."""
        while not self._queue.empty():
            outputs = self._queue.get_nowait()
            if isinstance(outputs, EngineOutputs):
                sink.put(outputs)
            else:
                sink.end(outputs)

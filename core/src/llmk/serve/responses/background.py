"""Responses that are made in the background: a run goes on without its client, which may follow or cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing

from llmk.api import Frame
from llmk.engine.cooperative import Yielder
from llmk.serve.generation.choice_deltas import ChoiceDelta, Usage
from llmk.serve.http import errors
from llmk.serve.http.json_response import named_event
from llmk.serve.responses.open_items import Json
from llmk.serve.responses.renderer import ResponseRenderer

Save = Callable[[Json, bytes], Awaitable[None]]
"""Stores the response when it has ended, with its events, if they are kept."""


class BackgroundRun:
    """One response. ``tenant`` is its owner. With ``keep_events``, clients may follow its stream from any event."""

    def __init__(self, tenant: str, renderer: ResponseRenderer, save: Save, *, keep_events: bool) -> None:
        self.tenant = tenant
        self.keeps_events = keep_events
        self.usage = Usage()
        self._renderer = renderer
        self._save = save
        self._events: list[bytes] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last: Json | None = None
        self._reason: Exception | None = None
        self._ends = False
        self._add(renderer.opening())

    def start(self, deltas: AsyncGenerator[ChoiceDelta, None], ended: Callable[[], object]) -> None:
        """Starts to read ``deltas``; ``ended`` is called when the response has been stored."""
        self._task = asyncio.create_task(self._run(deltas))
        self._task.add_done_callback(lambda _: ended())

    @property
    def response(self) -> Json:
        """The response as it is now. It has ended when its end is stored."""
        ended = self._task is not None and self._task.done()
        return self._last if ended and self._last is not None else self._renderer.response("in_progress")

    async def cancel(self, error: Exception | None = None) -> Json:
        """Ends the run: as cancelled, or as failed with an ``error``. Returns the response, once it is stored."""
        if self._task is not None:
            if not self._ends:
                self._ends, self._reason = True, error
                self._task.cancel()
            await asyncio.wait((self._task,))
        return self.response

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """The events after the one with the number ``after``, until the response ends."""
        at = after + 1
        while True:
            changed = self._changed
            if at < len(self._events):
                events, at = self._events[at:], len(self._events)
                yield b"".join(events)
            elif self._task is None or self._task.done():
                return
            else:
                await changed.wait()

    async def _run(self, deltas: AsyncGenerator[ChoiceDelta, None]) -> None:
        last: Iterable[Frame] = ()
        try:
            yielder = Yielder()
            async with aclosing(deltas) as items:
                async for delta in items:
                    self._add(self._renderer.frames(delta, self.usage))
                    await yielder.step()
            last = list(self._renderer.last_frames(self.usage))
            self._last = self._renderer.whole(self.usage)
        except asyncio.CancelledError:
            if self._reason is not None:
                last = self._failed(self._reason)
            else:
                self._last = self._renderer.response("cancelled", self.usage)
        except Exception as error:
            last = self._failed(error)
        self._ends = True  # What is stored now is not to be cut off.
        try:
            self._encode(last)
            assert self._last is not None
            await self._save(self._last, b"".join(self._events))
        except Exception as error:
            errors.log(error, 500)
        finally:
            self._wake()

    def _failed(self, error: Exception) -> list[Frame]:
        status, body, _ = errors.describe(error)
        errors.log(error, status)
        frames = list(self._renderer.failed(body["error"], self.usage))
        self._last = dict(frames[-1].data["response"])
        return frames

    def _add(self, frames: Iterable[Frame]) -> None:
        self._encode(frames)
        self._wake()

    def _encode(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            if self.keeps_events:
                self._events.append(named_event(frame))

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class BackgroundRuns:
    """The runs of one server, by the ids of their responses."""

    def __init__(self) -> None:
        self._runs: dict[str, BackgroundRun] = {}

    def start(self, id: str, run: BackgroundRun, deltas: AsyncGenerator[ChoiceDelta, None]) -> None:
        """Starts a run."""
        self._runs[id] = run
        run.start(deltas, lambda: self._runs.pop(id, None))

    def get(self, tenant: str, id: str) -> BackgroundRun | None:
        """The tenant's run with this id, if it has not ended."""
        run = self._runs.get(id)
        return run if run is not None and run.tenant == tenant else None

    async def aclose(self) -> None:
        """Ends all runs. They are stored as failed."""
        error = errors.ShuttingDown("the server is shutting down and could not finish this response")
        await asyncio.gather(*(run.cancel(error) for run in list(self._runs.values())))

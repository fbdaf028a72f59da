"""An engine that is started again when it dies, and goes on with its sequences where they were."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec.structs import replace

from llmk.api import EngineDead, LlmkError, PluginError
from llmk.api.errors import describe
from llmk.engine.processes.crash_suspects import TRIES, CrashSuspects, LiveSequence, Stage
from llmk.engine.processes.live_engine import ForwardingClient, LiveEngine, changes_of
from llmk.engine.processes.output_queue import Cause, OutputQueue, OutputSink
from llmk.engine.processes.standby import Standby
from llmk.engine.wire.block_events import AllBlocksCleared
from llmk.engine.wire.engine_info import EngineInfo, Outage
from llmk.engine.wire.plugin_calls import POLICY, Culprit
from llmk.engine.wire.request import EngineOutputs, EngineRequest, EngineStats, TokenOutput

logger = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0
"""Seconds before another engine is started where the one before it returned no token, which double with each such
engine and each failed attempt, and the most of them. The successor of one that returned tokens is started at once.
"""
STABLE_SECONDS = 60.0
"""An engine that ran for so long is no reason to distrust the next one, nor what it ran."""


Start = Callable[[], Awaitable[ForwardingClient]]


class Supervisor:
    """Follows :class:`~llmk.engine.processes.client.EngineClient`, with an engine that ``start`` makes, and makes
    again.

    All that an engine delivered before its end is passed on; the next one gets every sequence that has not ended, with
    the tokens that were delivered, and goes on after them. Sequences wait for it for ``restart_seconds``; then they
    fail, and new ones are refused until it is there.

    What engines die of fails: at once where the mark of a plugin's call names it, else as :class:`CrashSuspects` finds
    out.
    """

    def __init__(
        self,
        client: ForwardingClient,
        start: Start,
        restart_seconds: float,
        standby: Standby | None = None,
        distrusted: set[str] | None = None,
    ) -> None:
        self.info: EngineInfo = client.info
        self.outage: Outage | None = None
        self.culprit: Culprit | None = None
        self._client = client
        self._start = start
        self._standby = standby
        self._restart_seconds = restart_seconds
        self._live: dict[str, LiveSequence] = {}
        self._suspects = CrashSuspects(self._live)
        self._pins: dict[str, tuple[EngineRequest, float]] = {}
        """What is pinned, and when that ends: each new engine must pin it again."""
        self.outputs = OutputQueue()
        self._sink: OutputSink = self.outputs
        self.on_change: Callable[[], object] = lambda: None
        """Called when its engine is dead, and when there is another one."""
        self._stats = EngineStats(total_blocks=client.info.num_blocks)
        self._restarts = 0
        self._retried = 0
        self._offences: Counter[str] = Counter()
        """How many engines each plugin's code has ended, by its id."""
        self._distrusted = distrusted if distrusted is not None else set()
        self._barren = 0
        """How many engines and attempts in a row returned no token."""
        self._started = time.monotonic()
        self._next_attempt = 0.0
        self._gave_up = False
        self._ended = ""
        """Why there is no engine any more, and none to come."""
        self._cause: Cause = lambda: EngineDead(self._ended)
        """Of the last engine's end."""
        self._died = asyncio.Event()
        self._admitting: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name="llmk-supervisor")
        client.forward(LiveEngine(self._take_or_end, self._lose))
        self._prepare()

    @classmethod
    async def start(
        cls,
        start: Start,
        *,
        restart_seconds: float,
        standby: Standby | None = None,
        distrusted: set[str] | None = None,
    ) -> Supervisor:
        """Makes the first engine; raises what ``start`` raises. ``standby`` is prepared while an engine runs, and
        closed with the supervisor. ``distrusted`` gets the ids of what the next engine must not call.
        """
        return cls(await start(), start, restart_seconds, standby, distrusted)

    async def add(self, requests: list[EngineRequest]) -> None:
        """Queues sequences. Raises :class:`~llmk.api.EngineDead` where the engine has been gone for too long."""
        self._check_open()
        if self._gave_up:
            raise self._absence()
        now = time.monotonic()
        await self.adopt([LiveSequence(request, now) for request in requests])

    async def adopt(self, added: Sequence[LiveSequence]) -> None:
        """Goes on with sequences that are new, or were another one's."""
        self._live.update((one.request.id, one) for one in added)
        if self.outage is not None:
            self._report()
        elif not self._suspects.trying:
            await self._send(added)

    def give_away(self, ids: Iterable[str] | None = None) -> list[LiveSequence]:
        """Sequences that another one may go on with, which are that one's from now on: those of ``ids``, or all that
        wait for an engine. One that engines have died of stays, to be tried alone, and pins stay where they are.
        """
        chosen = list(self._live) if ids is None else [id for id in ids if id in self._live]
        given = [one for one in map(self._live.__getitem__, chosen) if one.deaths <= 1 and not one.request.pin]
        for one in given:
            del self._live[one.request.id]
            one.stage, one.is_moved = Stage.HELD, True
        return given

    @property
    def waits(self) -> bool:
        """Whether sequences that it gets would wait for an engine, though not for ever."""
        return self.outage is not None and not self._gave_up

    @property
    def ended(self) -> str:
        """Why there is no engine any more, and none to come; empty: there is."""
        return self._ended

    def forward(self, sink: OutputSink) -> None:
        """Has ``sink`` get all outputs, instead of the queue."""
        self._sink = sink
        self.outputs.forward(sink)

    async def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences; unknown ids are ignored. Never waits."""
        self._check_open()
        gone = list(ids)
        for id in gone:
            self._live.pop(id, None)
        if self.outage is not None:
            self._report()
            return
        with contextlib.suppress(EngineDead):
            await self._client.abort(gone)
        if self._suspects.trying:
            await self._admit()

    async def unpin(self, ids: Iterable[str]) -> None:
        """Ends pins; unknown ids are ignored. Never waits."""
        self._check_open()
        gone = list(ids)
        for id in gone:
            self._pins.pop(id, None)
        if self.outage is None:
            with contextlib.suppress(EngineDead):
                await self._client.unpin(gone)

    def check_health(self) -> float:
        """Says at once for how many seconds a step has been running without a sign of life. Raises
        :class:`~llmk.api.EngineDead` unless there is an engine, and it is well.
        """
        self._check_open()
        if self.outage is not None:
            raise self._absence()
        return self._client.check_health()

    async def close(self) -> None:
        """Stops the engine, or the attempt to start one. Idempotent."""
        self._end("the engine was closed")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._standby is not None:
            self._standby.close()
        await self._client.close()

    def _prepare(self) -> None:
        if self._standby is not None:
            self._standby.prepare()

    async def _run(self) -> None:
        try:
            while await self._died.wait():
                self._died.clear()
                await self._replace(self._cause())
        except Exception as error:
            self._broke(error)

    def _lose(self, cause: Cause) -> None:
        """The engine is dead: has it replaced."""
        self._cause = cause
        self._died.set()

    def _take_or_end(self, outputs: EngineOutputs) -> None:
        try:
            self._take(outputs)
        except Exception as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        logger.error("the engine's supervisor failed", exc_info=error)
        self._end(f"the engine's supervisor failed: {describe(error)}")

    def _take(self, outputs: EngineOutputs) -> None:
        for id in outputs.admitted:
            if (one := self._live.get(id)) is not None:
                one.stage = max(one.stage, Stage.ADMITTED)
        for output in outputs.outputs:
            if output.token_ids or output.hidden:
                self._barren = 0
            one = self._live.get(output.id)
            if one is not None and output.finish_reason is not None:
                del self._live[output.id]
                if output.num_pinned_tokens:
                    seconds = one.request.pin_seconds
                    self._pins[one.request.pin] = one.request, time.monotonic() + seconds if seconds else math.inf
            elif one is not None and (output.token_ids or output.hidden):
                one.tokens += output.token_ids
                one.num_delivered += output.hidden.num if output.hidden else 0
                one.stage = Stage.PROVEN
        self._stats = outputs.stats
        self._pass_on(outputs)
        if self._suspects.trying:
            self._admitting = asyncio.create_task(self._admit())

    async def _replace(self, cause: EngineDead) -> None:
        """Starts engines until one runs."""
        if time.monotonic() - self._started >= STABLE_SECONDS:
            self._suspects.trust()
        self.outage = Outage(since=time.time(), cause=cause.message, attempts=0)
        detail = "".join(f"\n{note}" for error in (cause, cause.__cause__) for note in getattr(error, "__notes__", ()))
        logger.error("%s; %d sequences wait for it to be started again%s", cause.message, len(self._live), detail)
        self._hold(cause)
        self._pass_on(EngineOutputs(stats=self._stats, blocks=[AllBlocksCleared()]))
        self.on_change()
        self._report()
        patience = asyncio.get_running_loop().call_later(self._restart_seconds, self._give_up)
        try:
            await self._clear_away()
            while not await self._attempt(cause):
                pass
        finally:
            patience.cancel()
        self._restarts += 1
        self._started = time.monotonic()
        self.outage, self._gave_up = None, False
        self._prepare()
        self._report()
        self.on_change()
        await self._pin_again()
        await self._admit()

    async def _pin_again(self) -> None:
        """Has the engine that is new compute and keep what the one before it kept."""
        now = time.monotonic()
        self._pins = {id: (request, until) for id, (request, until) in self._pins.items() if until > now}
        left = [replace(r, pin_seconds=until - now if r.pin_seconds else 0.0) for r, until in self._pins.values()]
        if left:
            with contextlib.suppress(EngineDead):
                await self._client.add(left)

    async def _attempt(self, cause: EngineDead) -> bool:
        """Waits, then tries to start an engine; whether that went well."""
        assert self.outage is not None
        delay = delay_after(self._barren)
        self._barren += 1
        self._next_attempt = time.monotonic() + delay
        try:
            await asyncio.sleep(delay)
            self.outage = replace(self.outage, attempts=self.outage.attempts + 1)
            self._client = await self._start()
        except Exception as error:
            self.outage = replace(self.outage, cause=f"{cause.message}; no other one started: {describe(error)}")
            foreseen = isinstance(error, LlmkError)
            logger.error("the engine can't be started: %s", error, exc_info=None if foreseen else error)
            return False
        self._client.forward(LiveEngine(self._take_or_end, self._lose))
        changes = "".join(changes_of(self.info, self._client.info))
        self.info = self._client.info
        self._stats = EngineStats(total_blocks=self.info.num_blocks, waiting=len(self._live))
        down = time.time() - self.outage.since
        level = logging.WARNING if changes else logging.INFO
        logger.log(level, "the engine is back after %.1f s, at attempt %d%s", down, self.outage.attempts, changes)
        return True

    async def _clear_away(self) -> None:
        try:
            await self._client.close()
        except Exception:
            logger.exception("the dead engine could not be cleared away")

    def _hold(self, cause: EngineDead) -> None:
        """Takes back what the dead engine had, and fails what it died of, as far as that is known."""
        admitted, culprit = self._suspects.at(Stage.ADMITTED, Stage.PROVEN), self._client.culprit
        if culprit is not None:
            guilty, code = self._used(culprit), PluginError.code
            named = str(culprit) in cause.message
            why = cause.message if named else f"{culprit} was running when {cause.message}"
            self._distrust(culprit)
        else:
            guilty, code = self._suspects.blame(), LlmkError.code
            what = f"{TRIES} engines in a row ended while they ran this request, which is not tried again; the last one"
            why = f"{what}: {cause.message}"
        self._suspects.hold()
        self._fail(guilty, why, code)
        self._retried += sum(one.request.id in self._live for one in admitted)

    def _used(self, culprit: Culprit) -> list[LiveSequence]:
        """The sequences that a plugin's code was called for when it ended the engine."""
        users = [one for one in self._suspects.at(Stage.ADMITTED, Stage.PROVEN, Stage.SENT) if one.uses(culprit)]
        return [one for one in users if one.stage is not Stage.SENT] or users

    def _distrust(self, culprit: Culprit) -> None:
        """Code that has ended :data:`TRIES` engines is not called again; nor is a policy, without which all go on."""
        self._offences[culprit.id] += 1
        if culprit.kind == POLICY or self._offences[culprit.id] >= TRIES:
            self._distrusted.add(culprit.id)
            logger.error("%s is not called again until the server is restarted", culprit)

    async def _admit(self) -> None:
        """Sends what is held back, as far as no suspect must be tried first."""
        while sequences := self._suspects.next():
            await self._send(sequences)

    async def _send(self, sequences: Sequence[LiveSequence]) -> None:
        """Gives sequences to the engine. One that is gone by now leaves them to the next."""
        now = time.monotonic()
        for one in sequences:
            one.stage = Stage.SENT
        if sequences:
            with contextlib.suppress(EngineDead):
                await self._client.add([one.continued(now) for one in sequences])

    def _give_up(self) -> None:
        """No sequence waits for longer."""
        assert self.outage is not None
        self._gave_up = True
        what = f"the engine was not back within {self._restart_seconds:g} s (engine.restart_seconds)"
        self._fail(list(self._live.values()), f"{what}: {self.outage.cause}", EngineDead.code)
        self._report()

    def _fail(self, sequences: Sequence[LiveSequence], error: str, code: str) -> None:
        outputs = []
        for one in sequences:
            del self._live[one.request.id]
            outputs.append(TokenOutput(id=one.request.id, finish_reason="error", error=error, error_code=code))
        if outputs:
            self._pass_on(EngineOutputs(outputs=outputs, stats=self._stats))

    def _report(self) -> None:
        """Passes on how things stand without an engine that would say so."""
        waiting = len(self._live)
        self._stats = replace(self._stats, running=0, used_blocks=0, pinned_blocks=0, pins=[], waiting=waiting)
        self._pass_on(EngineOutputs(stats=self._stats))

    def _pass_on(self, outputs: EngineOutputs) -> None:
        stats = outputs.stats
        stats.up, stats.restarts, stats.retried = int(self.outage is None), self._restarts, self._retried
        self._sink.put(outputs)

    def _absence(self) -> EngineDead:
        assert self.outage is not None
        age, attempts = time.time() - self.outage.since, self.outage.attempts
        message = f"the engine is being started again (for {age:.1f} s, in {attempts} attempts): {self.outage.cause}"
        return EngineDead(message, retry_after=max(1.0, self._next_attempt - time.monotonic()))

    def _end(self, why: str) -> None:
        """Every pending and later call fails. Only the first cause counts."""
        self._ended = self._ended or why
        self._sink.end(lambda: EngineDead(self._ended))

    def _check_open(self) -> None:
        if self._ended:
            raise EngineDead(self._ended)


def delay_after(barren: int) -> float:
    """Seconds to wait before an attempt that follows so many in a row that returned no token."""
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(barren - 1, 16)) if barren else 0.0

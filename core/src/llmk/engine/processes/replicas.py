"""Several engines that serve one model, as one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from llmk.api import ConfigError, EngineDead, LlmkError, ReplicaState, RoutedRequest
from llmk.config.replicas_section import ReplicasSection
from llmk.engine.processes.crash_suspects import LiveSequence
from llmk.engine.processes.output_queue import Cause, OutputQueue
from llmk.engine.processes.replica import FIRST_LENGTH, Placed, Replica, ReplicaSink
from llmk.engine.processes.replica_totals import total, unlike
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.routing.guarded_router import GuardedRouter
from llmk.engine.routing.replica_blocks import blocks_of
from llmk.engine.wire.engine_info import EngineInfo, Outage
from llmk.engine.wire.plugin_calls import Culprit
from llmk.engine.wire.request import EngineOutputs, EngineRequest, EngineStats, TokenOutput

logger = logging.getLogger(__name__)

StartReplica = Callable[[int], Awaitable[Supervisor]]
"""Starts the replica of a number."""

WATCH_SECONDS = 0.5
"""Between two looks at how fast replicas are."""
LEAST_SLOW = 1.0
"""Seconds that a step must take for its replica to be slow, no matter how long those of others take."""
LENGTH_WEIGHT = 0.05
"""How much an output counts for the mean of their lengths."""


class Replicas:
    """Follows :class:`~llmk.engine.processes.client.EngineClient`, with several supervised engines.

    A router chooses the replica of each sequence. Where an engine dies, its sequences go on elsewhere, after the tokens
    that were delivered; so they do where a replica is too slow, or says nothing. Each is with one replica at a time,
    and what any other says of it is dropped. Where no replica has an engine, sequences wait for one.
    """

    culprit: Culprit | None = None

    def __init__(
        self, supervisors: Sequence[Supervisor], start: StartReplica, router: GuardedRouter, config: ReplicasSection
    ) -> None:
        self.outputs = OutputQueue()
        self.router = router
        self._config = config
        self._start = start
        self._members: dict[int, Replica] = {}
        self._placed: dict[str, Placed] = {}
        """By the id that the front end knows."""
        self._length = FIRST_LENGTH
        self._moves: set[asyncio.Task[None]] = set()
        self._ended = ""
        for number, supervisor in enumerate(supervisors):
            self._join(number, supervisor)
        self._next = len(supervisors)
        self._watch = asyncio.create_task(self._watch_pace(), name="llmk-replicas")

    @classmethod
    async def start(cls, count: int, start: StartReplica, router: GuardedRouter, config: ReplicasSection) -> Replicas:
        """Starts the first replica, then all others at once. Raises what ``start`` raises, and
        :class:`~llmk.api.ConfigError` where one can't stand in for the first."""
        first = await start(0)
        others = await asyncio.gather(*(start(number) for number in range(1, count)), return_exceptions=True)
        running = [first, *(one for one in others if isinstance(one, Supervisor))]
        problems: list[BaseException] = [one for one in others if isinstance(one, BaseException)]
        for number, one in enumerate(running):
            if why := unlike(first.info, one.info):
                hint = "install the same wheels and give the same model to all"
                problems.append(ConfigError(f"replica-{number} can't stand in for replica-0: {why}", hint=hint))
        if problems:
            router.close()
            await asyncio.gather(*(one.close() for one in running), return_exceptions=True)
            raise problems[0]
        return cls(running, start, router, config)

    @property
    def members(self) -> list[Replica]:
        """All replicas, by number."""
        return list(self._members.values())

    @property
    def info(self) -> EngineInfo:
        """That of all: the limits of the least."""
        infos = [one.supervisor.info for one in self._members.values()]
        least = min(info.max_model_len for info in infos), min(info.num_blocks for info in infos)
        return replace(infos[0], max_model_len=least[0], num_blocks=least[1])

    @property
    def outage(self) -> Outage | None:
        """Set while no replica has an engine."""
        outages = [one.supervisor.outage for one in self._members.values()]
        return None if any(outage is None for outage in outages) else outages[0]

    async def add(self, requests: list[EngineRequest]) -> None:
        """Queues sequences. Raises :class:`~llmk.api.EngineDead` where no replica has an engine, and none is to come in
        time."""
        self._check_open()
        if not self._usable():
            raise self._absence()
        now, info = time.monotonic(), self.info
        for request in requests:
            one = Placed(request.id, request.id, request, list(blocks_of(request, info)))
            self._placed[request.id] = one
            if request.pin:
                await self._pin(one)
            else:
                await self._place(one, LiveSequence(request, now))

    async def abort(self, ids: Iterable[str]) -> None:
        """Ends sequences; unknown ids are ignored."""
        for id in ids:
            one = self._placed.pop(id, None)
            if one is None or (replica := one.replica) is None:
                continue
            replica.drop(one)
            others = self._members.values() if one.request.pin else [replica]
            for other in others:
                with contextlib.suppress(EngineDead):
                    await other.supervisor.abort([one.wire_id])

    async def unpin(self, ids: Iterable[str]) -> None:
        """Ends pins everywhere; unknown ids are ignored."""
        gone = list(ids)
        for replica in self._members.values():
            with contextlib.suppress(EngineDead):
                await replica.supervisor.unpin(gone)

    def check_health(self) -> float:
        """Says at once for how many seconds the replica that is best off has run a step without a sign of life. Raises
        :class:`~llmk.api.EngineDead` where none is well."""
        self._check_open()
        silences, problems = [], []
        for replica in self._members.values():
            try:
                silences.append(replica.supervisor.check_health())
            except EngineDead as error:
                problems.append(error)
        if not silences:
            raise problems[0]
        return min(silences)

    async def drain(self, number: int) -> None:
        """Gives a replica nothing new. What it has goes on there."""
        self._members[number].draining = True

    async def resume(self, number: int) -> None:
        """Ends draining."""
        self._members[number].draining = False
        self._rescue_all()

    async def scale(self, count: int, patience: float) -> None:
        """Starts replicas, or drains the last ones and ends them once they are done, at the latest after ``patience``
        seconds; what they have not done by then goes on elsewhere. Raises what starting raises."""
        while len(self._members) < count:
            number, self._next = self._next, self._next + 1
            supervisor = await self._start(number)
            if why := unlike(self.info, supervisor.info):
                await supervisor.close()
                raise ConfigError(f"replica-{number} can't stand in for the others: {why}")
            self._join(number, supervisor)
        leaving = list(self._members.values())[max(1, count) :]
        for replica in leaving:
            replica.draining = True
        deadline = time.monotonic() + patience
        while any(one.placed for one in leaving) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for replica in leaving:
            self._move_all(replica)
            del self._members[replica.number]
            await replica.supervisor.close()

    async def close(self) -> None:
        """Stops all engines. Idempotent."""
        self._end("the engine was closed")
        self._watch.cancel()
        for task in self._moves:
            task.cancel()
        self.router.close()
        await asyncio.gather(self._watch, *self._moves, return_exceptions=True)
        await asyncio.gather(*(one.supervisor.close() for one in self._members.values()))

    def slowness(self) -> dict[int, float]:
        """How long each replica's steps take, as a multiple of the median. One that has not ended counts only once it
        has taken :data:`LEAST_SLOW`: until then it may just have a long prompt."""
        now = time.monotonic()
        paces = {}
        for one in self._members.values():
            if one.pace:
                seconds = one.step_seconds(now)
                paces[one.number] = seconds if seconds > LEAST_SLOW else one.pace
        median = statistics.median_low(paces.values()) if paces else 0.0
        return {number: pace / median for number, pace in paces.items()} if median else {}

    def _join(self, number: int, supervisor: Supervisor) -> None:
        replica = self._members[number] = Replica(number, supervisor)
        supervisor.on_change = lambda: self._changed(replica)
        supervisor.forward(ReplicaSink(replica, self._take, self._lose))

    def _usable(self) -> list[Replica]:
        """Replicas that may get sequences: those that are up, else slow ones, else any that will have an engine."""
        all_ = [one for one in self._members.values() if not one.unlike and not one.supervisor.ended]
        for able in (["up"], ["slow"], ["draining"]):
            if found := [one for one in all_ if one.status in able]:
                return found
        return [one for one in all_ if one.supervisor.waits]

    async def _place(self, one: Placed, sequence: LiveSequence) -> None:
        """Gives a sequence to the replica that the router chooses."""
        try:
            while (usable := self._usable()) and self._placed.get(one.id) is one:
                replica = await self._choose(one, usable)
                if self._placed.get(one.id) is not one:  # it was aborted meanwhile
                    return
                if replica not in self._usable():
                    continue
                state = replica.state(1.0)
                facts = self._facts(one)
                replica.give(one, facts.expected_tokens - one.num_generated, state.cached_tokens(facts))
                await replica.supervisor.adopt([sequence])
                return
            if self._placed.get(one.id) is one:
                self._fail(one, self._absence())
        except Exception as error:
            logger.exception("a sequence could not be placed")
            self._fail(one, LlmkError(f"the request could not be placed: {type(error).__name__}: {error}"))

    async def _choose(self, one: Placed, usable: Sequence[Replica]) -> Replica:
        slowness = self.slowness()
        states: list[ReplicaState] = [each.state(slowness.get(each.number, 1.0)) for each in usable]
        chosen = await self.router.choose(self._facts(one), states)
        return usable[states.index(chosen)]

    def _facts(self, one: Placed) -> RoutedRequest:
        request, info = one.request, next(iter(self._members.values())).supervisor.info
        most = request.params.max_tokens
        length = self._length if most is None else min(self._length, most)
        return RoutedRequest(
            tenant=request.context.tenant,
            session=request.context.session,
            blocks=one.blocks,
            block_size=max(1, info.shared_block_size),
            num_prompt_tokens=len(request.prompt_token_ids),
            expected_tokens=max(1, round(length)),
        )

    async def _pin(self, one: Placed) -> None:
        """Has all replicas keep a prompt; the answer of one of those that are up is passed on."""
        home = await self._choose(one, self._usable())
        home.give(one, 1, 0)
        for replica in self._members.values():
            with contextlib.suppress(EngineDead):
                await replica.supervisor.add([one.request])

    def _take(self, replica: Replica, outputs: EngineOutputs) -> None:
        """Passes on what a replica says of sequences that are with it."""
        replica.take(outputs)
        passed = []
        for output in outputs.outputs:
            one = replica.placed.get(output.id)
            if one is None:
                continue
            output.id = one.id
            if output.token_ids or output.hidden:
                replica.progress(one, len(output.token_ids))
            if output.finish_reason is not None:
                self._length += (one.num_generated - self._length) * LENGTH_WEIGHT
                self._settle(one)
            passed.append(output)
        stats = self._total()
        self.outputs.put(replace(outputs, outputs=passed, admitted=[], stats=stats, replica=replica.number))

    def _lose(self, replica: Replica, cause: Cause) -> None:
        """A replica will have no engine any more."""
        if not self._ended:
            if len(self._members) > 1:
                self._move_all(replica)
            if all(one.supervisor.ended for one in self._members.values()):
                self._end(cause().message)

    def _changed(self, replica: Replica) -> None:
        """A replica's engine is dead, or it has another one."""
        replica.forget()
        if replica.supervisor.outage is None:
            first = next((one for one in self._members.values() if one is not replica), replica)
            replica.unlike = unlike(first.supervisor.info, replica.supervisor.info)
            if replica.unlike:
                logger.error("%s is left out: %s", replica.id, replica.unlike)
        self._rescue_all()

    def _rescue_all(self) -> None:
        """Sequences that wait for an engine go on where there is one."""
        if any(one.status in ("up", "slow") for one in self._members.values()):
            for replica in self._members.values():
                if replica.status in ("down", "unlike"):
                    self._move_all(replica)

    def _move_all(self, replica: Replica) -> None:
        """Has all sequences of a replica go on elsewhere, but those that its supervisor keeps."""
        is_running = replica.supervisor.outage is None and not replica.supervisor.ended
        given = replica.supervisor.give_away(list(replica.placed))
        if is_running and given:
            self._run(self._abort_at(replica, [sequence.request.id for sequence in given]))
        for sequence in given:
            one = replica.placed[sequence.request.id]
            replica.drop(one)
            replica.moved += 1
            one.moves += 1
            if is_running:  # it may still say something about the old id
                one.wire_id = f"{one.id}~{one.moves}"
                sequence.request = replace(sequence.request, id=one.wire_id)
            self._run(self._place(one, sequence))

    @staticmethod
    async def _abort_at(replica: Replica, ids: list[str]) -> None:
        with contextlib.suppress(EngineDead):
            await replica.supervisor.abort(ids)

    def _run(self, moving: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(moving)
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _watch_pace(self) -> None:
        """Leaves replicas out that are too slow, or say nothing."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._config.slow_factor and len(self._members) > 1:
                for replica in list(self._members.values()):
                    self._check_pace(replica)

    def _check_pace(self, replica: Replica) -> None:
        now, seconds = time.monotonic(), self._config.slow_seconds
        others = [one for one in self._members.values() if one is not replica and one.status == "up"]
        if replica.status != "up" or not others:
            return
        typical = statistics.median_low([one.step_seconds(now) for one in others])
        limit = max(LEAST_SLOW, self._config.slow_factor * typical)
        if not (replica.step_seconds(now) > limit or replica.is_silent()):
            replica.slow_since = 0.0
            return
        replica.slow_since = replica.slow_since or now
        if now - replica.slow_since >= seconds:
            what = "%s is left out for %g s: its steps take %.1f s, and those of others %.3f s"
            logger.warning(what, replica.id, seconds, replica.step_seconds(now), typical)
            replica.slow_until, replica.slow_since, replica.pace = now + seconds, 0.0, 0.0
            self._move_all(replica)

    def _settle(self, one: Placed) -> None:
        """A sequence has ended."""
        self._placed.pop(one.id, None)
        if one.replica is not None:
            one.replica.drop(one)

    def _fail(self, one: Placed, error: LlmkError) -> None:
        self._settle(one)
        output = TokenOutput(id=one.id, finish_reason="error", error=error.message, error_code=type(error).code)
        self.outputs.put(EngineOutputs(outputs=[output], stats=self._total()))

    def _total(self) -> EngineStats:
        return total([one.stats for one in self._members.values()])

    def _absence(self) -> EngineDead:
        for replica in self._members.values():
            try:
                replica.supervisor.check_health()
            except EngineDead as error:
                return error
        return EngineDead("no replica can take the request: all are left out")

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        self.outputs.end(lambda: EngineDead(self._ended))

    def _check_open(self) -> None:
        if self._ended:
            raise EngineDead(self._ended)

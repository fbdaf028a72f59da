"""Several replicas over scripted engines: where sequences go, and what becomes of them when engines die, stall, or say
what is no longer theirs to say.
"""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from scripted_engine import Engine, request, settle, token, until

from llmk.api import ConfigError, EngineDead, Router, RouterContext
from llmk.config.replicas_section import ReplicasSection
from llmk.engine.processes import replicas as replicas_module
from llmk.engine.processes import supervisor as supervisor_module
from llmk.engine.processes.replicas import Replicas
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.routing.guarded_router import GuardedRouter
from llmk.engine.wire.block_events import AllBlocksCleared, BlockStored
from llmk.engine.wire.request import EngineOutputs, EngineRequest, EngineStats, RequestContext, TokenOutput


class Named(Router):
    """The replica that the session names, while it takes requests."""

    def __init__(self, context: RouterContext) -> None:
        self.seen: list[tuple[int, ...]] = []

    def choose(self, request, replicas):
        self.seen.append(tuple(one.cached_tokens(request) for one in replicas))
        return next((one for one in replicas if one.id == request.session), replicas[0])


class Cluster:
    """Replicas, the engines that each had, and what the front end got."""

    def __init__(self) -> None:
        self.engines: dict[int, list[Engine]] = {}
        self.gates: dict[int, asyncio.Event] = {}
        self.outputs: list[TokenOutput] = []
        self.stats = EngineStats()
        self.blocks: list[tuple[int, object]] = []
        self.router = Named(RouterContext())
        self.changed: dict[int, dict[str, object]] = {}
        self.restart_seconds = 60.0

    async def start(self, number: int) -> Supervisor:
        gate = self.gates.setdefault(number, asyncio.Event())
        gate.set()

        async def engine() -> Engine:
            await gate.wait()
            made = Engine()
            plan = {"model": "m", "wheels": [["w", "1"]]}
            made.info = replace(made.info, shared_block_size=4, plan=plan, **self.changed.get(number, {}))
            self.engines.setdefault(number, []).append(made)
            return made

        return await Supervisor.start(engine, restart_seconds=self.restart_seconds)

    def engine(self, number: int) -> Engine:
        return self.engines[number][-1]

    def ids(self, number: int) -> list[str]:
        return self.engine(number).ids

    async def take(self) -> None:
        while True:
            outputs = await self.replicas.outputs.next()
            self.outputs += outputs.outputs
            self.stats = outputs.stats
            self.blocks += [(outputs.replica, event) for event in outputs.blocks]

    def tokens(self, id_: str) -> list[int]:
        return [token for output in self.outputs if output.id == id_ for token in output.token_ids]

    def ends(self, id_: str) -> list[str]:
        return [output.finish_reason for output in self.outputs if output.id == id_ and output.finish_reason]


def at(number: int, id_: str, prompt: tuple[int, ...] = (1, 2, 3), **params) -> EngineRequest:
    return replace(request(id_, prompt, **params), context=RequestContext(id_, session=f"replica-{number}"))


def run(scenario, count: int = 3, restart_seconds: float = 60.0, **rules) -> Cluster:
    cluster = Cluster()

    async def main() -> None:
        cluster.restart_seconds = restart_seconds
        config = ReplicasSection(count=count, **rules)
        guarded = GuardedRouter(cluster.router)
        cluster.replicas = await Replicas.start(count, cluster.start, guarded, config)
        taking = asyncio.create_task(cluster.take())
        await scenario(cluster, cluster.replicas)
        await cluster.replicas.close()
        with pytest.raises(EngineDead, match="was closed"):
            await taking
        assert all(engine.closed for engines in cluster.engines.values() for engine in engines)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    return cluster


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(replicas_module, "WATCH_SECONDS", 0.01)


def test_sequences_go_where_the_router_says_and_statistics_are_of_all() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([at(0, "a"), at(2, "b"), at(2, "c")])
        await settle()
        assert [cluster.ids(number) for number in range(3)] == [["a"], [], ["b", "c"]]
        await cluster.engine(2).say(token("b", 7, end=True))
        await cluster.engine(0).say(token("a", 8, end=True))
        assert cluster.stats.steps == 2
        assert [(one.load, len(one.placed)) for one in replicas.members][:2] == [(0, 0), (0, 0)]
        assert replicas.members[2].load > 0
        await replicas.abort(["c", "unknown"])
        assert (cluster.engine(2).aborted, replicas.members[2].load) == (["c"], 0)

    cluster = run(scenario)
    assert cluster.tokens("b") == [7]


def test_what_a_dead_replica_had_goes_on_elsewhere_after_its_tokens() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([at(1, "runs"), at(1, "waits"), at(0, "other")])
        await settle()
        await cluster.engine(1).say(token("runs", 5, 6), admitted=("runs",))
        cluster.gates[1].clear()
        dead = cluster.engine(1)
        await dead.die()
        await until(lambda: len(cluster.engine(0).added) == 3)
        moved = {added.id: added.generated_token_ids for added in cluster.engine(0).added}
        assert moved == {"other": [], "runs": [5, 6], "waits": []}
        await dead.say(token("runs", 99))
        await cluster.engine(0).say(token("runs", 7, end=True))
        assert (replicas.outage, replicas.members[1].status) == (None, "down")
        assert replicas.check_health() == 0.0
        await replicas.add([at(1, "late")])
        assert cluster.ids(0)[-1] == "late"
        cluster.gates[1].set()
        await until(lambda: replicas.members[1].status == "up")
        await replicas.add([at(1, "back")])
        await until(lambda: cluster.ids(1) == ["back"])

    cluster = run(scenario)
    assert (cluster.tokens("runs"), cluster.ends("runs")) == ([5, 6, 7], ["length"])
    assert (1, AllBlocksCleared()) in cluster.blocks


def test_where_no_replica_has_an_engine_sequences_wait_for_the_first() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([at(0, "a"), at(1, "b")])
        await settle()
        for number in (0, 1):
            cluster.gates[number].clear()
        for number in (0, 1):
            await cluster.engine(number).die()
        assert replicas.outage is not None
        with pytest.raises(EngineDead):
            replicas.check_health()
        await replicas.add([at(0, "c")])
        cluster.gates[1].set()
        await until(lambda: len(cluster.engines[1]) == 2)
        await settle()
        assert cluster.ids(1) == ["a"], "two engines in a row died of it: it is tried alone"
        await cluster.engine(1).say(token("a", 1), admitted=("a",))
        await cluster.engine(1).say(token("b", 1), admitted=("b",))
        assert sorted(cluster.ids(1)) == ["a", "b", "c"]

    run(scenario, count=2)


def test_where_none_comes_back_in_time_they_fail_once() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([at(0, "a"), at(1, "b")])
        await settle()
        for number in (0, 1):
            cluster.gates[number].clear()
            await cluster.engine(number).die()
        await asyncio.sleep(0.3)
        with pytest.raises(EngineDead):
            await replicas.add([at(0, "c")])

    cluster = run(scenario, count=2, restart_seconds=0.1)
    assert (cluster.ends("a"), cluster.ends("b")) == (["error"], ["error"])


def test_a_sequence_that_engines_die_of_kills_three_at_most_and_no_other_with_it() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([at(0, "poison"), at(1, "good"), at(2, "fine")])
        await settle()
        deaths = 0
        for _ in range(50):
            await settle()
            for number in range(3):
                engine = cluster.engine(number)
                running = [id for id in engine.ids if not cluster.ends(id.partition("~")[0])]
                for id in running:
                    if id.startswith("poison"):
                        deaths += 1
                        await engine.say(admitted=tuple(running))
                        await engine.die()
                        break
                    await engine.say(token(id, 1), admitted=(id,))
        assert deaths == 3
        for number in range(3):
            for id in ("good", "fine"):
                await cluster.engine(number).say(token(id, 2, end=True))

    cluster = run(scenario)
    assert cluster.ends("poison") == ["error"]
    assert (cluster.ends("good"), cluster.ends("fine")) == (["length"], ["length"])


def test_a_replica_that_is_slow_for_ever_loses_its_sequences_and_is_not_believed() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([at(1, "a", max_tokens=9), at(0, "other")])
        await settle()
        slow = cluster.engine(1)
        await slow.say(token("a", 5))
        for _ in range(60):
            await asyncio.sleep(0.01)
            await cluster.engine(0).say(token("other", 1))
            if "a~1" in cluster.ids(0) + cluster.ids(2):
                break
        assert slow.aborted == ["a"]
        home = next(number for number in (0, 2) if "a~1" in cluster.ids(number))
        assert cluster.engine(home).added[-1].generated_token_ids == [5]
        await slow.say(token("a", 66, end=True))
        await slow.say(token("a~1", 67, end=True))
        await cluster.engine(home).say(token("a~1", 6, end=True))
        assert replicas.members[1].status == "slow"
        await replicas.add([at(1, "next")])
        await settle()
        assert "next" not in slow.ids

    replicas_module.LEAST_SLOW, before = 0.1, replicas_module.LEAST_SLOW
    try:
        cluster = run(scenario, slow_seconds=0.05, slow_factor=2.0)
    finally:
        replicas_module.LEAST_SLOW = before
    assert (cluster.tokens("a"), cluster.ends("a")) == ([5, 6], ["length"])


def test_a_step_that_has_not_ended_makes_its_replica_slow_only_after_a_second() -> None:
    """Until then it may just have a long prompt, and routers would send what it has cached elsewhere."""

    async def scenario(cluster, replicas):
        await replicas.add([at(0, "a"), at(1, "b")])
        await settle()
        for member in replicas.members[:2]:
            member.pace = 0.005
        replicas.members[0].last_output -= 0.1
        assert replicas.slowness() == {0: 1.0, 1: 1.0}
        replicas.members[0].last_output -= 2.0
        assert replicas.slowness()[0] > 100

    run(scenario)


def test_a_replica_that_says_nothing_while_idle_is_left_out() -> None:
    async def scenario(cluster, replicas):
        cluster.engine(1).well = False
        await asyncio.sleep(0.2)
        assert replicas.members[1].status == "slow"
        await replicas.add([at(1, "a")])
        await settle()
        assert cluster.ids(1) == []
        assert replicas.check_health() == 0.0

    run(scenario, slow_seconds=0.05)


def test_blocks_are_known_by_events_and_expected_where_prompts_went() -> None:
    async def scenario(cluster, replicas):
        prompt = (1, 2, 3, 4, 5, 6, 7, 8, 9)
        await replicas.add([at(0, "a", prompt)])
        await settle()
        await replicas.add([at(1, "b", prompt)])
        await settle()
        assert cluster.router.seen[-1] == (8, 0), "they will be there"
        hashes = replicas._placed["a"].blocks
        stored = BlockStored(list(hashes), None, list(prompt[:8]), 4, None)
        cluster.engine(0)._sink.put(EngineOutputs(blocks=[stored], outputs=[token("a", 1)]))
        await replicas.add([at(1, "c", prompt)])
        assert cluster.router.seen[-1] == (8, 8)
        assert len(replicas.members[0].blocks.stored) == 2
        cluster.gates[0].clear()
        await cluster.engine(0).die()
        assert len(replicas.members[0].blocks.stored) == 0

    run(scenario, count=2)


def test_pins_are_kept_by_all_and_answered_once() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([replace(at(1, "pin-x"), pin="x")])
        await settle()
        assert [cluster.ids(number) for number in range(3)] == [["pin-x"]] * 3
        for number in range(3):
            await cluster.engine(number).say(
                TokenOutput(id="pin-x", token_ids=[number], num_pinned_tokens=4, finish_reason="length")
            )
        await replicas.unpin(["x"])
        assert [cluster.engine(number).unpinned for number in range(3)] == [["x"]] * 3

    cluster = run(scenario)
    assert (cluster.tokens("pin-x"), cluster.ends("pin-x")) == ([1], ["length"])


def test_replicas_drain_leave_and_join() -> None:
    async def scenario(cluster, replicas):
        await replicas.add([at(2, "done"), at(2, "late")])
        await settle()
        await replicas.drain(2)
        await replicas.add([at(2, "a")])
        await settle()
        assert cluster.ids(2) == ["done", "late"]
        leaving = asyncio.create_task(replicas.scale(2, patience=1.0))
        await settle()
        await cluster.engine(2).say(token("done", 1, end=True))
        await leaving
        assert cluster.engine(2).closed
        assert len(replicas.members) == 2
        await until(lambda: "late~1" in cluster.ids(0) + cluster.ids(1))
        await replicas.scale(3, patience=1.0)
        await replicas.add([at(3, "b")])
        await settle()
        assert cluster.ids(3) == ["b"]
        for number in (0, 1):
            await cluster.engine(number).say(token("late~1", 2, end=True))

    cluster = run(scenario)
    assert (cluster.ends("done"), cluster.ends("late")) == (["length"], ["length"])


def test_a_replica_with_another_model_is_refused_at_the_start_and_left_out_later() -> None:
    async def refused() -> None:
        cluster = Cluster()
        cluster.changed[1] = {"vocab_size": 10}
        with pytest.raises(ConfigError, match="replica-1 can't stand in for replica-0: its vocab_size is 10"):
            await Replicas.start(2, cluster.start, GuardedRouter(), ReplicasSection(count=2))
        assert all(engine.closed for engines in cluster.engines.values() for engine in engines)

    asyncio.run(refused())

    async def scenario(cluster, replicas):
        await replicas.add([at(1, "a")])
        await settle()
        cluster.changed[1] = {"vocab_size": 11}
        await cluster.engine(1).die()
        await settle()
        assert replicas.members[1].status == "unlike"
        await replicas.add([at(1, "b")])
        await settle()
        assert cluster.ids(0) == ["a", "b"]

    run(scenario, count=2)


def test_an_abort_while_the_router_thinks_reaches_no_replica() -> None:
    class Slow(Named):
        def choose(self, request, replicas):
            import time

            time.sleep(0.05)
            return replicas[0]

    async def main() -> None:
        cluster = Cluster()
        cluster.replicas = await Replicas.start(
            2, cluster.start, GuardedRouter(Slow(RouterContext())), ReplicasSection(count=2)
        )
        adding = asyncio.create_task(cluster.replicas.add([at(0, "a")]))
        await asyncio.sleep(0.01)
        await cluster.replicas.abort(["a"])
        await adding
        assert (cluster.ids(0), cluster.replicas.members[0].load) == ([], 0)
        await cluster.replicas.close()

    asyncio.run(main())

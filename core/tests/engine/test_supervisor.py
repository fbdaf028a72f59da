"""An engine's supervisor over a scripted engine, for orders of events that can't be provoked."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

import pytest
from msgspec.structs import replace
from scripted_engine import Engine, request, settle, token

from llmk.api import EngineDead, NotEnoughMemory
from llmk.engine.processes import supervisor as supervisor_module
from llmk.engine.processes.crash_suspects import TRIES
from llmk.engine.processes.supervisor import Supervisor, delay_after
from llmk.engine.wire.request import EngineStats, HiddenRows, TokenOutput


class Fleet:
    """A supervisor and the engines that it had. ``problems`` are what the next attempts to start one raise."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.problems: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.outputs: list[TokenOutput] = []
        self.stats = EngineStats()

    async def start(self) -> Engine:
        await self.gate.wait()
        if self.problems:
            raise self.problems.pop(0)
        self.engines.append(Engine(num_blocks=8 - len(self.engines)))
        return self.engines[-1]

    @property
    def engine(self) -> Engine:
        return self.engines[-1]

    async def take(self) -> None:
        while True:
            outputs = await self.supervisor.outputs.next()
            self.outputs += outputs.outputs
            self.stats = outputs.stats

    def tokens(self, id_: str) -> list[int]:
        return [token for output in self.outputs if output.id == id_ for token in output.token_ids]

    def errors(self) -> dict[str, str]:
        return {output.id: output.error_code for output in self.outputs if output.finish_reason == "error"}


def with_fleet(scenario, restart_seconds: float = 60.0) -> None:
    """Runs ``scenario`` and sees to it that nothing outlives it."""

    async def main() -> None:
        fleet = Fleet()
        fleet.supervisor = await Supervisor.start(fleet.start, restart_seconds=restart_seconds)
        taking = asyncio.create_task(fleet.take())
        await scenario(fleet, fleet.supervisor)
        await fleet.supervisor.close()
        with pytest.raises(EngineDead, match="was closed"):
            await taking
        assert all(engine.closed for engine in fleet.engines)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 0.0)


def test_what_ran_goes_on_and_what_waited_is_kept():
    async def scenario(fleet, supervisor):
        await supervisor.add([request("runs", max_tokens=9), request("waits")])
        await fleet.engine.say(admitted=("runs",))
        await fleet.engine.say(token("runs", 7))
        await fleet.engine.say(token("runs", 8))
        await fleet.engine.die()
        assert len(fleet.engines) == 2
        runs, waits = fleet.engine.added
        assert (runs.prompt_token_ids, runs.generated_token_ids, runs.seed) == ([1, 2, 3], [7, 8], 5)
        assert (waits.id, waits.generated_token_ids) == ("waits", [])
        assert 0 < runs.age < 1
        await fleet.engine.say(token("runs", 9, end=True), token("waits", 4, end=True))
        assert (fleet.tokens("runs"), fleet.tokens("waits")) == ([7, 8, 9], [4])
        assert (fleet.stats.up, fleet.stats.restarts, fleet.stats.retried) == (1, 1, 1)
        await fleet.engine.die()
        assert fleet.engine.added == []

    with_fleet(scenario)


def test_a_prompt_goes_on_after_the_hidden_states_that_were_sent():
    def hidden(start: int, *, end: bool = False) -> TokenOutput:
        rows = HiddenRows(start, 2, "uint8", bytes((start, start + 1)))
        return TokenOutput(id="a", hidden=rows, finish_reason="stop" if end else None)

    async def scenario(fleet, supervisor):
        await supervisor.add([replace(request("a", (1, 2, 3, 4, 5, 6)), returns="hidden")])
        for start in (0, 2):
            await fleet.engine.say(hidden(start))
            await fleet.engine.die()
            assert [(one.returns, one.num_delivered) for one in fleet.engine.added] == [("hidden", start + 2)]
        await fleet.engine.say(hidden(4, end=True))
        await fleet.engine.die()
        assert fleet.engine.added == []

    with_fleet(scenario)


def test_what_a_dead_engine_still_says_does_not_count():
    async def scenario(fleet, supervisor):
        await supervisor.add([request("a")])
        await fleet.engine.say(token("a", 7))
        await fleet.engine.die()
        await fleet.engines[0].say(token("a", 8))
        await fleet.engine.say(token("a", 8, end=True))
        assert fleet.tokens("a") == [7, 8]

    with_fleet(scenario)


def test_while_there_is_no_engine_requests_come_and_go():
    async def scenario(fleet, supervisor):
        await supervisor.add([request("stays"), request("goes")])
        fleet.gate.clear()
        await fleet.engine.die()
        assert supervisor.outage.cause == "it was killed"
        assert (fleet.stats.up, fleet.stats.waiting) == (0, 2)
        with pytest.raises(EngineDead, match=r"being started again .* it was killed") as caught:
            supervisor.check_health()
        assert caught.value.retry_after >= 1
        await supervisor.add([request("comes"), request("leaves")])
        await supervisor.abort(["goes", "leaves", "unknown"])
        await settle()
        assert fleet.stats.waiting == 2
        fleet.gate.set()
        await settle()
        assert fleet.engine.ids == ["stays", "comes"]
        assert (supervisor.outage, fleet.stats.up, fleet.engine.aborted) == (None, 1, [])
        supervisor.check_health()
        await supervisor.abort(["comes"])
        assert fleet.engine.aborted == ["comes"]

    with_fleet(scenario)


def test_an_engine_that_comes_too_late_finds_no_request_waiting():
    async def scenario(fleet, supervisor):
        await supervisor.add([request("a"), request("b")])
        fleet.gate.clear()
        await fleet.engine.die()
        await asyncio.sleep(0.1)
        assert fleet.errors() == {"a": "engine_dead", "b": "engine_dead"}
        assert "not back within 0.05 s (engine.restart_seconds): it was killed" in fleet.outputs[0].error
        with pytest.raises(EngineDead, match="being started again") as caught:
            await supervisor.add([request("refused")])
        assert caught.value.retry_after >= 1
        await supervisor.abort(["a"])
        fleet.gate.set()
        await settle()
        await supervisor.add([request("taken")])
        assert fleet.engine.ids == ["taken"]

    with_fleet(scenario, restart_seconds=0.05)


def test_attempts_go_on_until_one_succeeds(caplog):
    async def scenario(fleet, supervisor):
        fleet.problems = [NotEnoughMemory("2 GiB are needed"), OSError("no more processes"), EngineDead("again")]
        await supervisor.add([request("a")])
        await fleet.engine.die()
        await settle()
        assert fleet.engine.ids == ["a"]
        assert supervisor.info.num_blocks == 7

    with caplog.at_level(logging.INFO):
        with_fleet(scenario)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "it was killed; 1 sequences wait for it to be started again"
    assert [line for line in lines if "2 GiB" in line or "no more processes" in line or "again" in line][1:4]
    assert lines[-1].endswith("at attempt 4; num_blocks is 7, was 8")


def test_the_cause_of_an_outage_names_the_last_attempt():
    async def scenario(fleet, supervisor):
        fleet.problems = [NotEnoughMemory("2 GiB are needed")]
        start = fleet.start

        async def gated():
            if not fleet.problems:
                fleet.gate.clear()
            return await start()

        supervisor._start = gated
        await fleet.engine.die()
        await settle()
        assert supervisor.outage.attempts == 2
        expected = "it was killed; no other one started: NotEnoughMemory: 2 GiB are needed"
        assert supervisor.outage.cause == expected

    with_fleet(scenario)


def test_delays_double_up_to_half_a_minute(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 0.1)
    assert [delay_after(n) for n in (0, 1, 2, 3, 9, 10, 2000)] == [0.0, 0.1, 0.2, 0.4, 25.6, 30.0, 30.0]


def test_the_first_start_raises_what_it_meets():
    async def main():
        fleet = Fleet()
        fleet.problems = [NotEnoughMemory("2 GiB are needed")]
        with pytest.raises(NotEnoughMemory):
            await Supervisor.start(fleet.start, restart_seconds=60)

    asyncio.run(main())


@pytest.mark.parametrize("when", ["waiting", "starting"])
def test_closing_ends_an_outage(when, monkeypatch):
    async def scenario(fleet, supervisor):
        fleet.gate.clear()
        await supervisor.add([request("a")])
        await fleet.engine.die()
        await asyncio.wait_for(supervisor.close(), 5)
        for call in (supervisor.add([request("b")]), supervisor.abort(["a"])):
            with pytest.raises(EngineDead, match="was closed"):
                await call
        with pytest.raises(EngineDead, match="was closed"):
            supervisor.check_health()

    if when == "waiting":
        monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 30.0)
    with_fleet(scenario)


def test_a_supervisor_that_fails_itself_leaves_no_request_waiting():
    async def main():
        fleet = Fleet()
        supervisor = await Supervisor.start(fleet.start, restart_seconds=60)
        await fleet.engine.die(ZeroDivisionError("a bug"))
        with pytest.raises(EngineDead, match="supervisor failed: ZeroDivisionError: a bug"):
            await supervisor.outputs.next()
        with pytest.raises(EngineDead, match="a bug"):
            await supervisor.add([request("a")])
        await supervisor.close()

    asyncio.run(main())


def test_a_dead_engine_that_can_not_be_cleared_away_is_replaced():
    async def scenario(fleet, supervisor):
        first = fleet.engine

        async def broken():
            first.closed = True
            raise OSError("the folder is gone")

        first.close = broken
        await first.die()
        assert len(fleet.engines) == 2

    with_fleet(scenario)


def test_who_kills_engines_fails_and_the_others_go_on():
    """Four run; "poison" kills at its first step. Those that had returned tokens are not blamed for its arrival, and
    after the second death all are admitted in groups, "poison" first, of which two engines may have died.
    """

    async def scenario(fleet, supervisor):
        good = ("a", "b", "c")
        await supervisor.add([request(id_) for id_ in good])
        await fleet.engine.say(*(token(id_, 1) for id_ in good), admitted=good)
        await supervisor.add([request("poison"), request("waits")])
        await fleet.engine.say(admitted=("poison",))
        await fleet.engine.die()
        assert fleet.engine.ids == ["a", "b", "c", "poison", "waits"]
        await fleet.engine.say(admitted=(*good, "poison"))
        await fleet.engine.die()
        assert fleet.engine.ids == ["poison"]
        await supervisor.add([request("new")])
        await fleet.engine.say(admitted=("poison",))
        await fleet.engine.die()
        assert fleet.errors() == {"poison": "internal_error"}
        assert "3 engines in a row ended while they ran this request" in fleet.outputs[-1].error
        assert fleet.engine.ids == ["a"]
        await fleet.engine.say(token("a", 2), admitted=("a",))
        assert fleet.engine.ids == ["a", "b", "c"]
        await fleet.engine.say(token("b", 2), admitted=("b",))
        assert fleet.engine.ids == ["a", "b", "c"]
        await fleet.engine.say(token("c", 2), admitted=("c",))
        assert fleet.engine.ids == ["a", "b", "c", "waits", "new"]
        for id_ in good:
            await fleet.engine.say(token(id_, 3, end=True))
        assert len(fleet.engines) == 4
        assert [fleet.tokens(id_) for id_ in good] == [[1, 2, 3]] * 3
        assert fleet.stats.retried == 4 + 4

    with_fleet(scenario)


def test_several_that_kill_engines_are_found_one_after_the_other():
    """They kill whichever engine computes them; of the others, none fails and none is doubled."""

    async def scenario(fleet, supervisor):
        ids = [f"poison{number}" if number % 3 == 1 else f"good{number}" for number in range(9)]
        await supervisor.add([request(id_) for id_ in ids])
        made = defaultdict(int)
        ended = set()
        while len(ended) < 6:
            engine = fleet.engine
            running = [id_ for id_ in dict.fromkeys(engine.ids) if id_ not in ended]
            await engine.say(admitted=tuple(running))
            if any(id_.startswith("poison") for id_ in running):
                await engine.die()
                continue
            for id_ in running:
                made[id_] += 1
                if made[id_] == 3:
                    ended.add(id_)
                await engine.say(token(id_, made[id_], end=id_ in ended))
        assert fleet.errors() == dict.fromkeys(("poison1", "poison4", "poison7"), "internal_error")
        assert all(fleet.tokens(id_) == [1, 2, 3] for id_ in ids if id_.startswith("good"))
        assert len(fleet.engines) <= 1 + 3 * (TRIES + 1)

    with_fleet(scenario)


def test_the_innocent_wait_for_few_rounds_of_trials():
    """Of an engine that is killed from outside twice in a row, 100 requests are back after seven rounds."""

    async def scenario(fleet, supervisor):
        ids = [str(number) for number in range(100)]
        await supervisor.add([request(id_) for id_ in ids])
        for number in range(2):
            await fleet.engine.say(*(token(id_, number) for id_ in ids), admitted=tuple(ids))
            await fleet.engine.die()
        rounds, known = 0, 0
        while len(fleet.engine.ids) < 100:
            known, fresh = len(fleet.engine.ids), fleet.engine.ids[known:]
            await fleet.engine.say(*(token(id_, 2) for id_ in fresh), admitted=tuple(fresh))
            rounds += 1
        assert rounds < 7
        assert fleet.errors() == {}

    with_fleet(scenario)


def test_the_successor_of_an_engine_that_returned_tokens_is_started_at_once(monkeypatch):
    """However many there were before, and however long it would wait after one without tokens."""
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 30.0)

    async def scenario(fleet, supervisor):
        for number in range(5):
            await supervisor.add([request(str(number))])
            await fleet.engine.say(token(str(number), 7, end=True), admitted=(str(number),))
            await fleet.engine.die()
            assert len(fleet.engines) == number + 2
        await fleet.engine.die()
        assert len(fleet.engines) == 6

    with_fleet(scenario)


def test_a_group_that_kills_only_together_fails_one_after_the_other():
    """Any three at once: no one sequence is to blame, yet it comes to an end."""

    async def scenario(fleet, supervisor):
        ids = [str(number) for number in range(5)]
        await supervisor.add([request(id_) for id_ in ids])
        for _ in range(200):
            engine = fleet.engine
            running = [id_ for id_ in dict.fromkeys(engine.ids) if id_ not in fleet.errors()]
            if len(running) < 3:
                await engine.say(*(token(id_, 1) for id_ in running), admitted=tuple(running))
            else:
                await engine.say(admitted=tuple(running))
                await engine.die()
            if len(fleet.errors()) == 3:
                return
        raise AssertionError("it goes on for ever")

    with_fleet(scenario)


def test_who_is_tried_alone_may_leave():
    async def scenario(fleet, supervisor):
        await supervisor.add([request("a"), request("b")])
        for _ in range(2):
            await fleet.engine.say(admitted=("a", "b"))
            await fleet.engine.die()
        assert fleet.engine.ids == ["a"]
        await supervisor.abort(["a"])
        assert fleet.engine.ids == ["a", "b"]
        await supervisor.abort(["b"])
        await supervisor.add([request("c")])
        assert fleet.engine.ids == ["a", "b", "c"]

    with_fleet(scenario)


def test_all_that_ran_are_to_blame_where_no_request_can_be_named():
    async def scenario(fleet, supervisor):
        ids = ("a", "b")
        await supervisor.add([request(id_) for id_ in ids])
        for number in range(3):
            for id_ in ids:
                await fleet.engine.say(token(id_, number), admitted=(id_,))
            await fleet.engine.die()
        assert fleet.errors() == dict.fromkeys(ids, "internal_error")

    with_fleet(scenario)


def test_an_engine_that_dies_before_it_says_anything_is_blamed_on_what_it_was_sent():
    async def scenario(fleet, supervisor):
        await supervisor.add([request("a")])
        for _ in range(3):
            await fleet.engine.die()
        assert fleet.errors() == {"a": "internal_error"}
        assert fleet.stats.retried == 0

    with_fleet(scenario)


def test_after_a_stable_minute_nothing_is_held_against_anyone(monkeypatch):
    monkeypatch.setattr(supervisor_module, "STABLE_SECONDS", 0.0)

    async def scenario(fleet, supervisor):
        await supervisor.add([request("a"), request("b")])
        for number in range(6):
            await fleet.engine.say(token("a", number), token("b", number), admitted=("a", "b"))
            await fleet.engine.die()
            assert fleet.engine.ids == ["a", "b"]
        assert fleet.errors() == {}

    with_fleet(scenario)

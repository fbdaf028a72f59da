"""Routers under guard: what they answer, and what happens where they don't."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext
from llmk.engine.routing.guarded_router import GuardedRouter
from llmk.engine.routing.least_work import LeastWork

REQUEST = RoutedRequest(blocks=(1, 2, 3), block_size=4, num_prompt_tokens=14, expected_tokens=6)


def replicas(*loads: int) -> list[ReplicaState]:
    return [ReplicaState(id=f"r{number}", load=load) for number, load in enumerate(loads)]


class Second(Router):
    def __init__(self) -> None:
        self.calls = 0

    def choose(self, request, replicas):
        self.calls += 1
        return self.answer(replicas)

    def answer(self, replicas):
        return replicas[1]


class Raising(Second):
    def answer(self, replicas):
        raise KeyError("no such replica")


class Exiting(Second):
    def answer(self, replicas):
        raise SystemExit(3)


class Strange(Second):
    def answer(self, replicas):
        return ReplicaState(id=replicas[0].id)


class Hanging(Second):
    gate = threading.Event()

    def answer(self, replicas):
        self.gate.wait(20)
        return replicas[1]


def test_states_count_what_is_cached() -> None:
    state = ReplicaState(id="r", blocks={1, 2, 9})
    assert (state.cached_tokens(REQUEST), state.new_tokens(REQUEST)) == (8, 6 + 6)
    assert ReplicaState(id="r", blocks={2, 3}).cached_tokens(REQUEST) == 0
    whole = RoutedRequest(blocks=(1,), block_size=4, num_prompt_tokens=4, expected_tokens=1)
    assert ReplicaState(id="r", blocks={1}).new_tokens(whole) == 2, "one token of a prompt is always computed"


def test_the_built_in_choice_weighs_work_by_slowness() -> None:
    router = LeastWork(RouterContext())
    slow = [ReplicaState(id="slow", load=10, slowness=4.0), ReplicaState(id="busy", load=30)]
    assert router.choose(REQUEST, slow).id == "busy"
    chosen = [router.choose(REQUEST, replicas(0, 0, 0)).id for _ in range(6)]
    assert sorted(chosen) == ["r0", "r0", "r1", "r1", "r2", "r2"]


def test_a_good_router_is_asked_every_time() -> None:
    async def main() -> None:
        router = Second()
        guarded = GuardedRouter(router)
        for _ in range(3):
            assert (await guarded.choose(REQUEST, replicas(0, 9))).id == "r1"
        assert (router.calls, guarded.failures) == (3, 0)
        guarded.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Raising, Exiting, Strange, Hanging])
def test_a_router_that_fails_is_replaced_and_no_request_is_lost(kind: type[Second], caplog) -> None:
    async def main() -> None:
        router = kind()
        guarded = GuardedRouter(router, "x.y of acme 1.0", seconds=0.1)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        started = time.monotonic()
        chosen = await asyncio.gather(*(guarded.choose(REQUEST, replicas(9, 9, 0)) for _ in range(20)))
        assert {one.id for one in chosen} == {"r2"}
        assert (await guarded.choose(REQUEST, replicas(9, 9, 0))).id == "r2"
        assert time.monotonic() - started < 5
        assert ticks >= 5 or kind is not Hanging, "the event loop goes on while a router hangs"
        assert guarded.failures == 1
        assert router.calls <= 20
        ticking.cancel()
        kind.gate.set() if kind is Hanging else None

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    (record,) = caplog.records
    assert "the router x.y of acme 1.0 failed" in record.message
    assert "least work" in record.message

"""The engine's loop and what runs its steps: checked at every ping, and closed in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from paged_device import BehindDevice, make_core

from llmk.api import EngineDead
from llmk.engine.core import EngineCore
from llmk.engine.processes.engine_loop import LOOK_SECONDS, QUIET, run_engine
from llmk.engine.processes.loop_messages import (
    Add,
    Close,
    Command,
    Failed,
    Ping,
    Pong,
    Ready,
    Reply,
    Stepped,
)
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import StepPlan, StepResult

INFO = EngineInfo(max_model_len=64, vocab_size=100, block_size=4, num_blocks=32, plan={})


@pytest.mark.parametrize("gone", [False, True])
def test_a_ping_reports_whether_the_runner_is_alive(gone: bool) -> None:
    core: Any = make_core()
    closed: list[bool] = []
    sent: list[Reply] = []

    def check() -> None:
        if gone:
            raise EngineDead("process 1 was killed")

    def receive(seconds: float | None) -> Iterator[Command]:
        yield Ping(7)
        yield Close()

    core.runner.check, core.runner.close = check, lambda: closed.append(True)
    assert run_engine(lambda: (core, INFO), receive, sent.append) is not gone
    assert closed == [True]
    assert isinstance(sent[0], Ready)
    assert isinstance(sent[1], Failed if gone else Pong)
    if isinstance(sent[1], Failed):
        assert isinstance(sent[1].failure.error(), EngineDead)


def test_requests_that_arrive_while_a_step_runs_join_the_next() -> None:
    """Once it is known how long steps take, the next one is issued shortly before it can run."""
    core = make_core(depth=2)
    core.scheduler.live.clock = time.monotonic
    core = EngineCore(core.scheduler, BehindDevice(core.runner, seconds=0.2), depth=2)
    core.add(EngineRequest(id="first", prompt_token_ids=[1, 2, 3], params=SamplingParams(max_tokens=30)))
    arrived, admitted, waits = 0.0, 0.0, list[float | None]()

    def receive(seconds: float | None) -> Iterator[Command]:
        nonlocal arrived
        waits.append(seconds)
        if arrived:
            if admitted:
                yield Close()
        elif seconds and len(waits) > 50:
            assert seconds <= LOOK_SECONDS
            arrived = time.monotonic()
            params = SamplingParams(max_tokens=5)
            yield Add([EngineRequest(id="second", prompt_token_ids=[4, 5], params=params)])
        elif seconds:
            time.sleep(seconds)

    def send(reply: Reply) -> None:
        nonlocal admitted
        if isinstance(reply, Stepped) and "second" in reply.outputs.admitted:
            admitted = time.monotonic()

    assert run_engine(lambda: (core, INFO), receive, send)
    assert waits[0] == 0.0, "nothing is known yet"
    assert admitted - arrived < 0.25, "it did not wait for a step that was issued before"


def test_an_engine_that_has_nothing_to_do_prepares_until_nothing_is_left() -> None:
    core = make_core()
    left = iter((2, 1, 0))
    core.can_prepare = True
    core.runner.submit = lambda plan: SimpleNamespace(result=lambda: StepResult(step=plan.step, unrecorded=next(left)))
    waits = list[float | None]()

    def receive(seconds: float | None) -> Iterator[Command]:
        waits.append(seconds)
        if seconds is None:
            yield Close()

    assert run_engine(lambda: (core, INFO), receive, lambda reply: None)
    assert waits == [QUIET, 0.0, 0.0, None]


def test_nothing_is_prepared_between_requests_that_follow_each_other() -> None:
    core = make_core()
    core.can_prepare = True
    prepared, waits = list[StepPlan](), list[float | None]()
    submit = core.runner.submit

    def watched(plan: StepPlan) -> Any:
        if plan.record:
            prepared.append(plan)
        return submit(plan)

    def receive(seconds: float | None) -> Iterator[Command]:
        waits.append(seconds)
        if seconds == QUIET:  # the client has its answer, and sends another request at once
            if waits.count(QUIET) > 5:
                yield Close()
            params = SamplingParams(max_tokens=2)
            yield Add([EngineRequest(id=str(len(waits)), prompt_token_ids=[1, 2], params=params)])

    core.runner.submit = watched
    assert run_engine(lambda: (core, INFO), receive, lambda reply: None)
    assert not prepared
    assert waits.count(QUIET) == 6


@pytest.mark.parametrize("error", [RuntimeError("no memory"), EngineDead("gone")])
def test_what_can_not_be_prepared_is_left(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    core = make_core()
    core.can_prepare = True

    def submit(plan: StepPlan) -> Any:
        raise error

    core.runner.submit = submit
    if isinstance(error, EngineDead):
        with pytest.raises(EngineDead):
            core.prepare()
    else:
        core.prepare()
        assert not core.can_prepare
        assert "no more steps are recorded: no memory" in caplog.text

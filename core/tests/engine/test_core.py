"""Steps in flight: how many, that they overlap, what they cost the host, and that nothing of it shows in the tokens."""

from __future__ import annotations

import time
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from paged_device import BehindDevice, PagedDevice, make_core, run_alone

from llmk.api import PlatformFacts
from llmk.engine.core import EngineCore
from llmk.engine.execution.executor import PendingStep
from llmk.engine.processes.engine_loop import run_engine
from llmk.engine.processes.loop_messages import Close, Ping, Reply, Stepped
from llmk.engine.scheduling.async_scheduling import choose_depth, why_asynchronous
from llmk.engine.wire.grammar_params import GrammarParams
from llmk.engine.wire.request import EngineRequest, RequestContext, StepTimes
from llmk.engine.wire.sampling_params import SamplingParams

HOST, DEVICE = 0.012, 0.02


def request(id: str, prompt: list[int], new: int) -> EngineRequest:
    return EngineRequest(id=id, prompt_token_ids=prompt, params=SamplingParams(max_tokens=new))


def behind(core: EngineCore, seconds: float = 0.0) -> EngineCore:
    """The same engine over an asynchronous device; seconds are those of a real clock."""
    device = core.runner
    assert isinstance(device, PagedDevice)
    core.scheduler.live.clock = time.monotonic
    return EngineCore(core.scheduler, BehindDevice(device, seconds), depth=core.depth)


@pytest.mark.parametrize(
    ("wanted", "features", "depth", "why"),
    [
        (0, {"asynchronous"}, 2, "acme/a1 runs steps asynchronously to the host"),
        (0, set(), 1, "the host itself runs the steps"),
        (1, {"asynchronous"}, 1, "engine.steps_in_flight"),
        (2, set(), 2, "engine.steps_in_flight"),
    ],
)
def test_two_where_it_pays_or_as_configured(wanted: int, features: set[str], depth: int, why: str) -> None:
    facts = PlatformFacts(name="acme", arch="a1", device_type="acme", features=frozenset(features))
    chosen, reason = choose_depth(wanted, why_asynchronous(facts))
    assert chosen == depth
    assert why in reason


@pytest.mark.parametrize(("depth", "expected"), [(1, HOST + DEVICE), (2, max(HOST, DEVICE))])
def test_with_two_the_slower_of_host_and_device_sets_the_pace(depth: int, expected: float) -> None:
    core = behind(make_core(depth=depth), DEVICE)
    core.add(request("a", [1], 30))
    for _ in range(5):
        core.step()
    took = []
    for _ in range(20):
        start = time.monotonic()
        time.sleep(HOST)  # what a host does meanwhile: it prepares steps and sends outputs
        core.step()
        took.append(time.monotonic() - start)
    assert 0.95 * expected < sorted(took)[10] < expected + 0.6 * min(HOST, DEVICE)


@pytest.mark.parametrize("prompts", [False, True], ids=["decode", "prompts"])
def test_steps_that_become_shorter_do_not_leave_the_device_waiting(prompts: bool) -> None:
    """A step is put off for the time that the one before is expected to take; what an expectation that is too long adds
    to a step must not make the next one longer still."""
    core = behind(make_core(num_blocks=512, max_num_seqs=4, max_num_batched_tokens=8, depth=2), 0.1)
    device, slow, ended = core.runner, 12, list[float]()
    assert isinstance(device, BehindDevice)
    for number in range(4):
        core.add(request(str(number), [1] * (120 if prompts and number else 2), 80))
    commands: list[Ping | Close] = []

    def receive(seconds: float | None) -> list[Ping | Close]:
        time.sleep(seconds or 0.0)
        return commands

    def send(reply: Reply) -> None:
        if isinstance(reply, Stepped) and reply.outputs.step is not None:
            ended.append(time.monotonic())
            if len(ended) == slow:
                device.seconds = 0.005
            if len(ended) == slow + 24:
                commands.append(Close())

    info: Any = None
    assert run_engine(lambda: (core, info), receive, send)
    took = [after - before for before, after in pairwise(ended)]
    assert sorted(took[4:slow])[3] > 0.09
    assert sorted(took[slow + 4 :])[10] < 0.03, took


def test_a_step_that_cannot_say_whether_it_has_ended_is_waited_for() -> None:
    core = behind(make_core(depth=2), DEVICE)
    runner, asked = core.runner, list[int]()

    class Mute:
        """A step of a stranger's executor."""

        def __init__(self, pending: PendingStep) -> None:
            self.step, self.result = pending.step, pending.result

        def is_done(self) -> bool:
            asked.append(self.step)
            raise RuntimeError("the device is lost")

    submit = runner.submit
    runner.submit = lambda plan: Mute(submit(plan))  # type: ignore[method-assign]
    core = EngineCore(core.scheduler, runner, depth=2)
    core.add(request("a", [1, 2, 3], 12))
    made = 0
    while core.has_work:
        assert core.spare_seconds() == 0.0
        made += sum(len(output.token_ids) for output in core.step().outputs)
    assert made == 12
    assert asked, "it was never checked"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5])
def test_requests_on_an_asynchronous_device_give_what_they_give_alone(depth: int, seed: int) -> None:
    rng = Random(seed)
    core = behind(make_core(num_blocks=12, max_num_seqs=4, max_num_batched_tokens=9, depth=depth))
    lengths = {str(number): (rng.randrange(1, 24), rng.randrange(1, 12)) for number in range(16)}
    left = {id for id in lengths if rng.random() < 0.2}
    prompts = {id: ([5] * 12 + [int(id)] * length)[:28] for id, (length, _) in lengths.items()}
    for id, (_, new) in lengths.items():
        core.add(request(id, prompts[id], new))
    made: dict[str, list[int]] = {id: [] for id in lengths}
    while core.has_work:
        for output in core.step().outputs:
            made[output.id] += output.token_ids
            if output.id in left:
                core.abort([output.id])
    assert core.stats.preemptions
    assert core.stats.prefix_hit_tokens
    assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks
    for id, (_, new) in lengths.items():
        alone = run_alone(prompts[id], new, limit=64)
        assert made[id] == (alone[:1] if id in left else alone)


def test_the_hosts_share_of_a_step_is_what_is_neither_run_nor_awaited() -> None:
    """On an asynchronous device waiting is not the host's, on a synchronous one submitting."""
    waiting = behind(make_core(depth=2), DEVICE)
    running = make_core()
    running.scheduler.live.clock = time.monotonic
    running = EngineCore(running.scheduler, running.runner)
    assert isinstance(running.runner, PagedDevice)
    running.runner.before_step = lambda plan: time.sleep(DEVICE)
    for core in (waiting, running):
        core.add(request("a", [1, 2, 3], 8))
        steps = []
        while core.has_work:
            before = time.monotonic()
            outputs = core.step()
            assert before < outputs.time <= time.monotonic()
            steps.append(outputs.step)
        times = [step for step in steps if step is not None]
        assert [step.num_tokens for step in times] == [3] + [1] * 7
        assert all(isinstance(step, StepTimes) and 0 < step.host_seconds < step.seconds for step in times)
        assert sorted(step.seconds for step in times)[4] > 0.9 * DEVICE
        # On a machine that other processes keep busy, most steps wait for a processor too.
        assert min(step.host_seconds for step in times) < 0.2 * DEVICE


def test_the_log_of_a_failed_step_names_its_requests_once(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core()

    def explode(plan: object) -> None:
        raise ZeroDivisionError("no luck")

    core.runner.before_step = explode  # type: ignore[attr-defined]
    for id, of in (("a/0", "a"), ("a/1", "a"), ("b/0", "b")):
        core.add(EngineRequest(id=id, prompt_token_ids=[1], params=SamplingParams(), context=RequestContext(log_id=of)))
    core.step()
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["request_ids"]) == ("step 0 failed", ["a", "b"])


def test_a_grammar_that_nothing_can_start_fails_its_request_rather_than_being_ignored() -> None:
    core = make_core()
    params = SamplingParams(structured_outputs=GrammarParams(regex="a"))
    core.add(EngineRequest(id="a", prompt_token_ids=[1], params=params, context=RequestContext()))
    (output,) = core.step().outputs
    assert (output.error_code, output.error_param) == ("invalid_request_error", "structured_outputs")
    assert not core.has_work

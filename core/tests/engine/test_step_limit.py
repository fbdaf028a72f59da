"""No request delays another tenant's for long: steps that several tenants share are short, and take turns."""

from __future__ import annotations

from typing import Any

import pytest
from loads import drain, ends, request
from paged_device import make_core, run_alone

from llmk.engine.core import EngineCore
from llmk.engine.scheduling.step_limit import RECENT, StepLimit, Tenants

SHORT, PER_TOKEN = 0.006, 0.0003
"""Seconds of a step of one token, and of each further one."""


def paced(slowdown: float = 2.0, per_token: float = PER_TOKEN, **options: Any) -> tuple[EngineCore, list[int]]:
    """An engine whose device takes its time, and the tokens of each of its steps."""

    def seconds(num_tokens: int) -> float:
        return SHORT + per_token * (num_tokens - 1) if num_tokens else 0.0

    options = {"num_blocks": 400, "max_num_seqs": 32, "max_model_len": 256, "max_num_batched_tokens": 128, **options}
    core = make_core(seconds=seconds, step_limit=StepLimit(slowdown), **options)
    core.add(request("warm", [1], "quiet", new=40))
    drain(core)
    return core, core.runner.steps


def learned(core: EngineCore) -> None:
    """Lets the engine learn what tokens cost."""
    for number in range(20):
        core.add(request(f"learn{number}", [number] * 60, "flood", new=1))
    drain(core)


def latency(core: EngineCore, name: str) -> float:
    """Seconds that a short request of the quiet client takes."""
    core.add(request(name, [3, 4], "quiet", new=12))
    started = core.runner.seconds
    while core.has_work:
        if name in ends(core.step().outputs):
            return core.runner.seconds - started
    raise AssertionError("it never ended")


def test_long_prompts_of_one_tenant_delay_other_tenants_little():
    core, steps = paced()
    learned(core)
    alone = latency(core, "alone")
    for number in range(30):
        core.add(request(f"flood{number}", [number, *range(40)] * 5, "flood", new=1))
    core.step()
    shared = latency(core, "shared")
    assert core.scheduler.waiting or core.scheduler.running, "the flood was over before"
    assert shared < 2.5 * alone
    assert max(steps[-12:]) <= 2 + SHORT / PER_TOKEN
    drain(core)


@pytest.mark.parametrize("per_token", [PER_TOKEN, SHORT / 3])
def test_one_request_of_many_choices_delays_other_tenants_little(per_token):
    """Also where each row costs much, as those of long contexts do."""
    core, _ = paced(per_token=per_token)
    learned(core)
    alone = latency(core, "alone")
    flood = [request(f"flood{number}", [7], "flood", new=200) for number in range(200)]
    for one in flood:
        core.add(one)
    for _ in range(40):
        core.step()
    assert len(core.scheduler.running) == 32, "every slot is taken"
    assert latency(core, "shared") < 2.5 * alone
    core.abort([one.id for one in flood])
    drain(core)


def test_rows_take_turns_and_come_to_what_they_would_have():
    core, steps = paced(max_num_seqs=64)
    learned(core)
    prompts = {f"f{number}": [number, 5] for number in range(40)}
    core.add(request("quiet", [9], "quiet", new=200))
    for name, prompt in prompts.items():
        core.add(request(name, prompt, "flood", new=12))
    made: dict[str, list[int]] = {name: [] for name in ("quiet", *prompts)}
    last: dict[str, int] = {}
    longest = 0
    start = len(steps)
    while any(len(made[name]) < 12 for name in prompts):
        for output in core.step().outputs:
            made[output.id] += output.token_ids
            longest = max(longest, len(steps) - last.get(output.id, len(steps)))
            last[output.id] = len(steps)
    assert len(made["quiet"]) >= len(steps) - start - 2, "its token came with each step"
    assert longest <= 6, "40 rows of which 10 or 20 go on in each step"
    for name, prompt in prompts.items():
        assert made[name] == run_alone(prompt, 12, limit=256)
    core.abort(["quiet"])
    drain(core)


@pytest.mark.parametrize("options", [{"slowdown": 0.0}, {"slowdown": 2.0}])
def test_a_tenant_alone_has_whole_steps(options):
    core, steps = paced(**options)
    learned(core)
    core.runner.seconds += RECENT + 1
    core.add(request("long", [*range(50)] * 4, "flood", new=1))
    drain(core)
    assert steps[-3:] == [128, 72, 0]


def test_a_client_that_was_there_just_now_finds_no_long_step():
    core, steps = paced()
    learned(core)
    core.add(request("long", [*range(50)] * 4, "flood", new=1))
    core.step()
    assert steps[-1] <= 1 + SHORT / PER_TOKEN
    drain(core)


def test_the_limit_follows_what_steps_take():
    limit = StepLimit(2.0)
    assert (limit.rows(2048), limit.prompt_tokens(0, 2048)) == (17, 16), "before anything is known"
    assert (limit.rows(12), limit.prompt_tokens(0, 12)) == (12, 12)
    for _ in range(100):
        limit.take(1, 0, 0.010)
        limit.take(101, 0, 0.060)
    assert limit.rows(2048) == pytest.approx(21, abs=1)
    assert limit.rows(2048, 0.5) == pytest.approx(11, abs=1)
    assert limit.prompt_tokens(11, 2048) == 16, "what they take is not known yet"
    for _ in range(100):
        limit.take(11, 100, 0.025)
    assert limit.prompt_tokens(1, 2048) == pytest.approx(100, abs=4), "they cost a fifth of rows"
    assert limit.prompt_tokens(11, 2048) == pytest.approx(50, abs=4)
    assert limit.prompt_tokens(1, 50) == 50
    for _ in range(100):
        limit.take(101, 0, 0.020)
    assert limit.rows(2048) == pytest.approx(101, abs=2)
    limit.take(1, 0, 60.0)
    assert limit.rows(2048) < 150, "one step that was held up says little"
    for _ in range(100):
        limit.take(101, 0, 30.0)
    assert (limit.rows(2048), limit.prompt_tokens(3, 2048)) == (3, 2), "something is always computed"
    assert (StepLimit(0.0).rows(2048), StepLimit(0.0).prompt_tokens(64, 2048)) == (2048, 2048)


def test_rows_that_cost_more_than_tokens_of_prompts_are_limited_by_what_they_cost():
    """Short prompts of many requests are cheap, and say nothing of the rows that these then are."""
    limit = StepLimit(1.5)
    limit.take(1, 0, 0.010)
    for _ in range(50):
        limit.take(1, 512, 0.020)
        limit.take(33, 0, 0.042)
    assert limit.rows(64) == pytest.approx(6, abs=1)
    assert limit.prompt_tokens(1, 8192) > 200


def test_rows_whose_contexts_grow_are_limited_while_there_are_prompts():
    """Choices of a long prompt cost more than rows did before, and no step of theirs is without prompts for long."""
    limit = StepLimit(1.5)
    for _ in range(50):
        limit.take(1, 0, 0.010)
        limit.take(11, 0, 0.012)
        limit.take(2, 100, 0.0152)
    assert (limit.rows(64), limit.prompt_tokens(1, 64)) == (26, 64), "before they grow"
    for _ in range(200):
        rows = limit.rows(64, 0.5)
        limit.take(rows, 2, 0.010 + 0.001 * (rows - 1) + 0.0001)
    assert limit.rows(64, 0.5) <= 4
    assert limit.prompt_tokens(rows, 64) > 16, "what tokens cost has hardly changed"


def test_tenants_are_remembered_for_a_while_and_no_longer():
    tenants = Tenants()
    tenants.enter("a")
    assert not tenants.several(0.0)
    for number in range(1000):
        tenants.enter(f"t{number}")
        tenants.leave(f"t{number}", number / 100)
    assert tenants.several(10.0)
    assert tenants.several(10.0 + RECENT - 1)
    assert not tenants.several(10.0 + RECENT)
    assert not tenants._left
    tenants.leave("a", 50.0)
    tenants.enter("a")
    assert not tenants.several(50.0)

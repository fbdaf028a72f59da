"""Steps that fail, and sequences that go on after tokens that another engine delivered."""

from __future__ import annotations

import random

import pytest
from loads import drain, ends
from paged_device import make_core, run_alone

from llmk.api import EngineDead, QueueTimeout, RequestError, RequestTimeout
from llmk.engine.core import MAX_FAILURES, EngineCore
from llmk.engine.wire.request import EngineOutputs, EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams


def request(id_: str, prompt: list[int], generated: tuple[int, ...] = (), age: float = 0.0, **params) -> EngineRequest:
    return EngineRequest(
        id=id_, prompt_token_ids=prompt, params=SamplingParams(**params), generated_token_ids=list(generated), age=age
    )


def tokens(outputs, id_):
    return [token for output in outputs if output.id == id_ for token in output.token_ids]


def rebuilt(core):
    """An engine over the same scheduler and device, which binds what the device is now."""
    return EngineCore(core.scheduler, core.runner, depth=core.depth)


def fail_steps(core, fails, late):
    """Makes steps fail of whose number ``fails``, when they are issued or (``late``) when they are waited for."""
    submit = core.runner.submit

    def failing(plan):
        pending = submit(plan)
        if fails(plan.step):
            if not late(plan.step):
                raise ValueError(f"step {plan.step} is broken")
            pending.result = lambda: failing_result(plan.step)
        return pending

    def failing_result(step):
        raise ValueError(f"step {step} is broken")

    core.runner.submit = failing
    return rebuilt(core)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("number", range(8))
def test_failing_steps_end_their_own_requests_and_no_others(number, depth):
    """Any step may fail, also with others in flight: all others come out as if alone, with what they were sent."""
    rng = random.Random(number)
    core = make_core(depth=depth, num_blocks=24, max_num_seqs=3, max_num_batched_tokens=10)
    broken = {step for step in range(200) if rng.random() < 0.08}
    broken -= {step for step in broken if step - 1 in broken or step - 2 in broken}
    core = fail_steps(core, broken.__contains__, lambda step: bool(step % 2))
    lengths = {str(n): (rng.randrange(1, 20), rng.randrange(1, 15)) for n in range(20)}
    for id_, (length, count) in lengths.items():
        core.add(request(id_, [int(id_)] * length, max_tokens=count))
    outputs = drain(core)
    failed = {output.id for output in outputs if output.finish_reason == "error"}
    assert sorted(ends(outputs)) == sorted(lengths)
    assert 0 < len(failed) < len(lengths)
    for id_, (length, count) in lengths.items():
        alone = run_alone([int(id_)] * length, count, limit=64)
        made = tokens(outputs, id_)
        assert made == alone[: len(made)] if id_ in failed else made == alone
    assert all("is broken" in output.error for output in outputs if output.id in failed and output.finish_reason)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_device_that_fails_every_step_ends_the_engine(depth, late):
    core = make_core(depth=depth, max_num_seqs=1)
    core = fail_steps(core, lambda step: True, lambda step: late)
    for number in range(MAX_FAILURES):
        core.add(request(str(number), [1], max_tokens=2))
    outputs = []

    def run():
        while core.has_work:
            outputs.extend(core.step().outputs)

    with pytest.raises(EngineDead, match=r"3 steps in a row failed, the last one with ValueError: step \d is broken"):
        run()
    assert ends(outputs) == ["0", "1"], "the third is for the next engine to try"
    assert all("is broken" in output.error for output in outputs)


def test_a_step_between_that_returns_a_token_shows_that_the_device_works():
    core = make_core(max_num_seqs=1)
    core.runner.before_step = lambda plan: 1 // int(not any("bad" in new.id for new in plan.new))
    for number in range(3 * MAX_FAILURES):
        core.add(request(f"{number}{'bad' if number % 3 else ''}", [1], max_tokens=1))
    assert len(ends(drain(core))) == 3 * MAX_FAILURES


@pytest.mark.parametrize("late", [False, True])
def test_the_end_of_the_device_is_let_through(late):
    core = make_core()

    def die(*args):
        raise EngineDead("worker 1 was killed")

    if late:
        submit = core.runner.submit
        core.runner.submit = lambda plan: (pending := submit(plan), setattr(pending, "result", die))[0]
    else:
        core.runner.submit = die
    core = rebuilt(core)
    core.add(request("a", [1]))
    with pytest.raises(EngineDead, match="worker 1 was killed"):
        core.step()


def test_who_enters_the_batch_is_announced_before_the_step_is_run():
    core = make_core(max_num_seqs=1)
    announced: list[EngineOutputs] = []
    core.runner.before_step = lambda plan: announced.append(EngineOutputs(admitted=["run"])) if plan.new else None
    core.add(request("a", [1], max_tokens=1))
    core.add(request("b", [1], max_tokens=1))
    while core.has_work:
        core.step(announced.append)
    assert [outputs.admitted for outputs in announced] == [["a"], ["run"], ["b"], ["run"]]
    assert announced[0].stats.running == 1


@pytest.mark.parametrize("known", [1, 4, 7])
@pytest.mark.parametrize("stops", [(), (11,)])
def test_a_sequence_goes_on_after_what_was_delivered(known, stops):
    prompt = [3] * 9
    params = {"max_tokens": 12, "logprobs": 0, "prompt_logprobs": 0, "stop_token_ids": stops, "min_tokens": 8}
    whole = make_core()
    whole.add(request("a", prompt, **params))
    before = drain(whole)
    core = make_core()
    core.add(request("a", prompt, tuple(tokens(before, "a")[:known]), **params))
    after = drain(core)
    expected = [(o.token_ids, o.logprobs, o.finish_reason, o.stop_token_id) for o in before[known:]]
    assert [(o.token_ids, o.logprobs, o.finish_reason, o.stop_token_id) for o in after] == expected
    assert len(before[0].prompt_logprobs) == 8
    assert not any(output.prompt_logprobs for output in after), "they came with the first token"


def test_a_request_that_outgrew_a_smaller_cache_fails_with_that_reason():
    core = make_core(num_blocks=8)
    core.add(request("a", [1] * 20, tuple(range(20)), max_tokens=30))
    (output,) = drain(core)
    assert output.error_code == RequestError.code
    assert "40 tokens of the prompt and its answer so far need 10 blocks, the cache has 8" in output.error


def test_time_with_engines_before_counts():
    core = make_core(queue_timeout=20, request_timeout=50)
    core.runner.steps.extend([0] * 100)
    core.add(request("old", [1], age=60, max_tokens=3))
    core.add(request("started", [1], (5,), age=30, max_tokens=3))
    core.add(request("late", [1], age=30, max_tokens=3))
    core.add(request("new", [1], age=10, max_tokens=3))
    outputs = drain(core)
    codes = {output.id: output.error_code for output in outputs if output.finish_reason}
    assert codes == {"old": RequestTimeout.code, "late": QueueTimeout.code, "started": "", "new": ""}

"""Prompts hold up neither the tokens of requests that decode, nor shorter prompts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loads import Load, drain, ends, request, tight_loads
from paged_device import make_core, run_alone

from llmk.engine.core import EngineCore
from llmk.engine.scheduling.prompt_limit import ALONE, FEWEST_ALONE, PromptLimit
from llmk.engine.scheduling.prompt_limit import LONG as LONG_SECONDS

DECODING, PER_TOKEN, TARGET = 0.006, 0.0003, 0.02
"""Seconds of a step that only decodes, of each token of a prompt, and between tokens."""
LONG = [number % 40 for number in range(2000)]


def make(
    decoding: float = DECODING, target: float = TARGET, per_token: float = PER_TOKEN, **options: Any
) -> EngineCore:
    """An engine whose device takes its time."""

    def seconds(num_tokens: int) -> float:
        return decoding + per_token * (num_tokens - 1) if num_tokens else 0.0

    options = {"max_num_seqs": 32, "max_num_batched_tokens": 128, "max_model_len": 4096, **options}
    return make_core(seconds=seconds, prompt_limit=PromptLimit(target), num_blocks=4000, **options)


def learn(core: EngineCore) -> None:
    """Leaves the engine with a request that decodes, and knowing what steps take."""
    core.add(request("decodes", [1, 2], new=2000))
    for number in range(8):
        for _ in range(5):
            core.step()
        core.add(request(f"learn{number}", [number] * 60, new=1))
    for _ in range(20):
        core.step()
    core.runner.steps.clear()


def steps_until(core: EngineCore, name: str) -> int:
    """Steps until a request has ended."""
    for count in range(1, 1000):
        if name in ends(core.step().outputs):
            return count
    raise AssertionError(f"{name} never ended")


def test_tokens_come_in_time_alongside_a_long_prompt() -> None:
    core = make()
    learn(core)
    core.add(request("long", LONG, new=1))
    before, steps = core.runner.seconds, steps_until(core, "long")
    most = max(DECODING + PER_TOKEN * (count - 1) for count in core.runner.steps)
    assert most <= 1.15 * TARGET
    assert (core.runner.seconds - before) / steps > 0.8 * TARGET, "the time that there is was not used"
    core.abort(["decodes"])
    drain(core)


def test_without_a_target_only_long_prompts_are_bounded() -> None:
    core = make(target=0.0, max_num_batched_tokens=1024)
    learn(core)
    core.add(request("long", LONG, new=1))
    core.step()
    few = (LONG_SECONDS - DECODING) / PER_TOKEN
    assert core.runner.steps.pop() == pytest.approx(few, rel=0.1)
    for number in range(20):
        core.add(request(f"short{number}", [number] * 60, new=1))
    core.step()
    assert core.runner.steps.pop() == pytest.approx(512 + few / 2, rel=0.1), "half of a step, and the long one goes on"
    core.abort(["decodes", *(f"short{number}" for number in range(20))])
    core.step()
    assert core.runner.steps.pop() == FEWEST_ALONE, "the long one is alone: 0.1 s are fewer tokens"
    drain(core)


def test_a_long_prompt_alone_leaves_soon_what_it_takes() -> None:
    core = make(decoding=0.001, target=0.0, max_num_batched_tokens=4096, max_model_len=8192, per_token=0.0001)
    learn(core)
    core.abort(["decodes"])
    core.add(request("long", LONG * 4, new=1))
    core.step()
    assert core.runner.steps.pop() == pytest.approx((ALONE - 0.001) / 0.0001, rel=0.1)
    drain(core)


def test_nothing_is_limited_where_nothing_decodes() -> None:
    core = make()
    learn(core)
    core.abort(["decodes"])
    core.add(request("long", LONG, new=1))
    drain(core)
    assert core.runner.steps[:-1].count(128) >= len(LONG) // 128


def test_prompts_get_on_where_decoding_takes_longer_than_the_target() -> None:
    core = make(decoding=0.05)
    learn(core)
    core.add(request("long", LONG, new=1))
    core.step()
    assert core.runner.steps == [128], "three times what decoding takes is for more than the step may have"
    core = make(decoding=0.015)
    learn(core)
    core.add(request("long", LONG, new=1))
    core.step()
    assert core.runner.steps[0] == pytest.approx(0.03 / PER_TOKEN, rel=0.15)


@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize("tenant", ["", "other"])
def test_a_short_prompt_does_not_wait_for_a_long_one(decodes: bool, tenant: str) -> None:
    core = make()
    learn(core)
    if not decodes:
        core.abort(["decodes"])
    core.add(request("long", LONG, new=1))
    core.step()
    core.add(request("short", [7] * 16, tenant, new=1))
    assert steps_until(core, "short") == 1
    core.add(request("longer", [*LONG, 1], new=1))
    core.step()
    core.add(request("short again", [8] * 16, tenant, new=1))
    assert steps_until(core, "short again") == 1
    core.abort(["decodes"])
    drain(core)


def test_a_long_prompt_gets_what_others_leave() -> None:
    core = make()
    core.add(request("long", LONG, new=1))
    for number in range(5):
        core.add(request(f"short{number}", [number] * 10, new=1))
    core.step()
    assert core.runner.steps == [128]
    for number in range(100):
        core.add(request(f"more{number}", [number % 50] * 60, new=1))
    core.step()
    long = core.scheduler.live.get("long")
    assert long is not None
    assert long.num_computed == 128 - 50 + 64, "half of it, however many others there are"
    drain(core)


@given(tight_loads(), st.sampled_from([1e-4, 5e-3, 2e-2]))
def test_tokens_are_those_of_each_request_alone(load: Load, target: float) -> None:
    core = make_core(
        num_blocks=load.num_blocks,
        max_num_seqs=load.max_num_seqs,
        max_num_batched_tokens=load.budget,
        max_model_len=32,
        depth=load.depth,
        seconds=lambda num_tokens: DECODING + PER_TOKEN * num_tokens,
        prompt_limit=PromptLimit(target),
    )
    for number, (length, new) in enumerate(load.lengths):
        core.add(request(str(number), [number] * length, new=new))
    outputs = drain(core)
    for number, (length, new) in enumerate(load.lengths):
        made = [token for output in outputs if output.id == str(number) for token in output.token_ids]
        assert made == run_alone([number] * length, new, limit=32)


@given(st.integers(0, 100_000), st.integers(1, 8192), st.floats(0, 1e9))
def test_a_chunk_takes_no_more_than_there_is_time_for(start: int, count: int, operations: float) -> None:
    limit = PromptLimit(1.0, lambda start, count: 100.0 * count + count * (start + count / 2))
    found = limit.tokens(start, count, operations)
    assert min(count, 16) <= found <= count
    assert found <= 16 or limit.operations(start, found) <= operations
    assert found == count or limit.operations(start, found + 1) > operations


def test_what_held_a_step_up_once_counts_little() -> None:
    limit = PromptLimit(0.05)
    assert limit.most() == math.inf
    for _ in range(20):
        limit.take(0, 0.01)
        limit.take(100, 0.02)
    usual = limit.most()
    assert usual == pytest.approx(0.04 / 1e-4, rel=0.01)
    limit.take(100, 5.0)
    limit.take(0, 5.0)
    assert limit.most() > 0.5 * usual


def test_of_long_prompts_one_is_computed_at_a_time_and_short_ones_pass_them() -> None:
    core = make()
    for number in range(10):
        core.add(request(f"long{number}", [*LONG, number], new=1))
    core.step()
    core.add(request("short", [7] * 16, new=1))
    assert steps_until(core, "short") == 1
    assert core.stats.running == 1, "others take no blocks yet"
    assert core.runner.steps == [128, 128]
    done = ends(drain(core))
    assert done == [f"long{number}" for number in range(10)]

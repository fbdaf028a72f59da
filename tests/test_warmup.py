"""Warming up, on the real engine: every kind of model takes the steps, answers stay as they are, and the log tells."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from equal_tokens import KINDS

from llmk import LLM, SamplingParams
from llmk.api import NotEnoughMemory
from llmk.engine.device.graphs import StepShape
from llmk.engine.execution import build
from llmk.engine.execution.runner import Runner
from llmk.engine.execution.warmup import WarmUp
from llmk.engine.wire.step import StepPlan
from llmk.planning.cache_groups import CacheGroup
from llmk_testing.checkpoints import write_checkpoint

SETTINGS: dict[str, Any] = {
    "cache.num_blocks": 200,
    "cache.block_size": 8,
    "scheduler.max_num_batched_tokens": 48,
    "scheduler.max_num_seqs": 5,
}
PROMPTS = [[(7 * number + 3 * at) % 380 for at in range(1 + 13 * number)] for number in range(5)]
PARAMS = [SamplingParams(seed=number, temperature=number % 2, max_tokens=12) for number in range(5)]


def answers(folder: Path, **settings: Any) -> list[list[int]]:
    with LLM(str(folder), dtype="float32", **SETTINGS, **settings) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_an_engine_that_is_not_warm(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model_type, overrides = KINDS[kind]
    folder = write_checkpoint(tmp_path, model_type, **overrides)
    cold = answers(folder)
    monkeypatch.setattr(build, "compiles", lambda plan: True)  # no kernel of this machine does
    steps: list[int] = []
    submit = Runner.submit
    monkeypatch.setattr(Runner, "submit", lambda self, plan: (steps.append(plan.num_tokens), submit(self, plan))[1])
    with caplog.at_level(logging.INFO, "llmk"):
        assert answers(folder) == cold
    assert "warm-up: " in caplog.text
    assert {1, 2, 4, 8, 16, 32, 48} <= set(steps)
    if kind == "dense":  # of which the reference can be recorded, which is all there is here
        shapes = [StepShape(size, size) for size in (1, 2, 5)]
        monkeypatch.setattr(build, "recordable", lambda boot, platform: (shapes, ""))
        assert answers(folder) == cold
    steps.clear()
    caplog.clear()
    assert answers(folder, **{"engine.warm_up": False}) == cold
    assert 32 not in steps
    assert "warm-up" not in caplog.text


class Watched:
    """Both facets that warm-up uses, on a machine that has neither: kernels that can't all be compiled, and memory that
    the ``fail``-th measurement finds exhausted."""

    def __init__(self, fail: int = 0) -> None:
        self.compiling = self.memory = self
        self.fail = fail
        self.measured = 0

    @contextmanager
    def ahead(self) -> Iterator[None]:
        yield
        raise RuntimeError("no such instruction")

    def measure(self, run: Callable[[], None]) -> int:
        self.measured += 1
        if self.measured == self.fail:
            raise torch.OutOfMemoryError("tried to allocate 1 GiB")
        run()
        return 100 * self.measured


def warm_up(submit: Callable[[StepPlan], Any], *limits: int, recorded: tuple[int, ...] = ()) -> WarmUp:
    """For one whose steps go to ``submit``, of kernels that take turns at three tokens."""
    plan = SimpleNamespace(all_choices=lambda: [SimpleNamespace(pieces=(SimpleNamespace(start=3),))])
    build = SimpleNamespace(plan=plan, representative_layers=nullcontext)
    batch, record = SimpleNamespace(adapters=None), lambda graphs, sizes: None
    runner: Any = SimpleNamespace(build=build, batch=batch, submit=submit, record=record)
    return WarmUp(runner, [CacheGroup(4)], *limits, [StepShape(size, size) for size in recorded])


def test_what_steps_and_graphs_take_is_added(caplog: pytest.LogCaptureFixture) -> None:
    platform: Any = Watched()
    assert warm_up(lambda plan: SimpleNamespace(result=lambda: None), 8, 2, 16).run(platform) == 300
    assert "not all kernels could be compiled ahead" in caplog.text
    assert "no such instruction" in caplog.text


@pytest.mark.parametrize("fail", [1, 2])
def test_a_step_that_does_not_fit_is_told_with_its_size(fail: int) -> None:
    platform: Any = Watched(fail)
    with pytest.raises(NotEnoughMemory, match="a step of 8 tokens and 2 requests") as caught:
        warm_up(lambda plan: SimpleNamespace(result=lambda: None), 8, 2, 16).run(platform)
    assert "max_num_batched_tokens" in caught.value.hint


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 64])
@pytest.mark.parametrize("max_requests", [1, 2, 9, 100])
@pytest.mark.parametrize("max_len", [1, 2, 5, 100])
@pytest.mark.parametrize("recorded", [(), (1, 2)])
def test_steps_keep_to_the_limits(max_tokens: int, max_requests: int, max_len: int, recorded: tuple[int, ...]) -> None:
    """Of tokens, of requests, and of a request's length; and some step reaches each of them."""
    seen: list[StepPlan] = []

    def submit(plan: StepPlan) -> Any:
        seen.append(plan)
        return SimpleNamespace(result=lambda: None)

    warm_up(submit, max_tokens, max_requests, max_len, recorded=recorded)._eager()
    for step in seen:
        lengths = {request.slot: request.num_computed for request in step.new}
        assert set(lengths) == {work.slot for work in step.work}
        assert all(0 < work.num_tokens <= max_len - lengths[work.slot] for work in step.work)
        assert all(len(request.token_ids) <= 4 * len(request.block_ids[0]) for request in step.new)
    working = [step for step in seen if step.work]
    assert max(step.num_tokens for step in working) == min(max_tokens, max_len * max_requests)
    assert max(len(step.work) for step in working) == min(max_tokens, max_requests)
    assert max(len(request.token_ids) for step in working for request in step.new) == max_len
    assert {request.slot for step in working for request in step.new} == {slot for step in seen for slot in step.freed}
    assert any(step.num_tokens == 3 for step in working) == (max_tokens >= 3 and max_len * max_requests >= 3)

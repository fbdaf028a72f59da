"""What an executor of a plugin returns arrives as the result of a step, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from llmk.api import CacheSpec, EngineDead, ExecutorContext, LayerGroup, PluginError, Step, StepTokens
from llmk.engine.execution.plugin_executor import PluginExecutor
from llmk.engine.wire.failure import BROKEN_MODEL
from llmk.engine.wire.step import Masks, StepPlan, Work


@dataclass
class Known:
    tokens: StepTokens

    def is_done(self) -> bool:
        return True

    def result(self) -> StepTokens:
        return self.tokens


@dataclass
class Counting:
    """Says how many tokens each request has; the logits of the ``broken`` rows are not finite."""

    context: ExecutorContext | None = None
    asynchronous: str = ""
    cache_specs: Sequence[CacheSpec] = ()
    broken: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    closed: int = 0

    def available(self) -> int:
        return 0

    def allocate(self, num_blocks: int, groups: Sequence[LayerGroup]) -> None:
        pass

    def submit(self, step: Step) -> Known:
        found = [work.before + work.num_tokens for work in step.work if work.sample]
        return Known(StepTokens(found + self.extra, self.broken))

    def close(self) -> None:
        self.closed += 1


PLAN = StepPlan(
    step=3,
    work=[
        Work(slot=0, before=2, num_tokens=5, sample=True),
        Work(slot=1, before=0, num_tokens=4),
        Work(slot=2, before=9, num_tokens=1, sample=True),
    ],
)


def test_tokens_and_rows_that_are_not_finite() -> None:
    result = PluginExecutor(Counting(broken=[1]), "acme.count").submit(PLAN).result()
    assert (result.step, result.tokens) == (3, [[7], [10]])
    assert result.errors == {2: BROKEN_MODEL}
    assert result.num_broken == 1


def test_a_step_without_work() -> None:
    result = PluginExecutor(Counting(), "acme.count").submit(StepPlan(step=4, record=True)).result()
    assert (result.tokens, result.unrecorded) == ([], 0)


def test_other_numbers_of_tokens_are_refused() -> None:
    pending = PluginExecutor(Counting(extra=[1]), "acme.count").submit(PLAN)
    with pytest.raises(PluginError, match="3 tokens of step 3, in which 2 are sampled"):
        pending.result()


def test_masks_and_the_end() -> None:
    own = Counting()
    executor = PluginExecutor(own, "acme.count")
    with pytest.raises(EngineDead, match=r"acme\.count was given masks"):
        executor.sample(Masks(step=3, rows=[], bits=bytearray()))
    executor.close()
    assert own.closed == 1

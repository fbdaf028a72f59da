"""Drafts on the real engine: requests are answered as without, whoever drafts and whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from paged_device import Always
from spread import FAMILIES, answers, check, make, tight
from threaded_ranks import ThreadedRanks

from llmk import LLM
from llmk.api import Speculator
from llmk.engine import launch
from llmk.engine.scheduling.drafting import Drafting

RECURRENT = ("mamba2-biases", "qwen3-next-one-kv-head")


class Random9(Speculator):
    """Drafts tokens at random, of few, so that some are accepted."""

    def __init__(self) -> None:
        self.random = Random(9)

    def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
        return [self.random.randrange(3, 380) for _ in range(self.random.randrange(most + 1))]


class Knowing(Speculator):
    """Drafts what a run without drafts came to, but for some tokens."""

    def __init__(self, runs: list[list[int]]) -> None:
        self.runs = runs
        self.random = Random(1)

    def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
        known = list(tokens)
        found = next((run[len(known) :][:most] for run in self.runs if run[: len(known)] == known), [])
        return [token if self.random.random() < 0.8 else 3 for token in found]


def draft(llm: LLM, most: int, speculator: Speculator | None) -> None:
    """Has ``llm`` draft so many tokens in every step."""
    scheduler: Any = llm._core and llm._core.scheduler
    scheduler._drafting = scheduler.live.drafting = Drafting(Always(most), llm.boot.facts.vocab_size, speculator)


@pytest.fixture(scope="module", params=[family for family in FAMILIES if family not in RECURRENT])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A checkpoint, what is answered without drafts, and the tokens of all sequences of that run."""
    folder = make(tmp_path_factory.mktemp("checkpoint"), request.param)
    runs: list[list[int]] = []
    with LLM(str(folder), **tight(folder.name)) as llm:
        scheduler: Any = llm._core and llm._core.scheduler
        finish = scheduler.live.finish

        def recorded(sequence: Any, **options: Any) -> None:
            runs.append(list(sequence.tokens))
            finish(sequence, **options)

        scheduler.live.finish = recorded
        return folder, answers(llm), runs


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("kind", "most"), [("random", 2), ("knowing", 4)])
def test_answers_are_those_without_drafts(family: tuple[Path, Any, Any], depth: int, kind: str, most: int) -> None:
    folder, expected, runs = family
    with LLM(str(folder), **tight(folder.name), engine={"steps_in_flight": depth}) as llm:
        draft(llm, most, Knowing(runs) if kind == "knowing" else Random9())
        check(answers(llm, preempted=kind == "random"), expected)
        stats: Any = llm._core and llm._core.stats
        assert stats.generated_tokens > (1.5 * stats.steps if kind == "knowing" and depth == 1 else 0)


@pytest.mark.parametrize("pipeline", [2, 3])
def test_every_stage_learns_what_was_accepted(
    family: tuple[Path, Any, Any], pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected, runs = family
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **tight(folder.name), parallel={"pipeline": pipeline}) as llm:
        draft(llm, 3, Knowing(runs))
        check(answers(llm, preempted=False), expected)

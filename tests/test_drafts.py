"""Drafts on the real engine: requests are answered as without, whoever drafts and whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from paged_device import Always
from spread import FAMILIES, answers, check, make, tight
from threaded_ranks import ThreadedRanks
from torch import Tensor

from llmk import LLM, SamplingParams
from llmk.api import ConfigError, DeviceSpeculator, Speculator
from llmk.engine import launch
from llmk.engine.scheduling.draft_length import StepCosts
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


class OnDevice(DeviceSpeculator):
    """Drafts on the device what a run without drafts came to, by a hash of a request's first tokens, or nonsense."""

    def __init__(self, runs: list[list[int]]) -> None:
        width = max(map(len, runs)) + 9
        self.runs = torch.tensor([run + [-1] * (width - len(run)) for run in runs])

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        column = torch.arange(self.runs.shape[1])
        own = torch.nn.functional.pad(tokens[slots], (0, self.runs.shape[1]))[:, : self.runs.shape[1]]
        alike = (self.runs == own[:, None]) | (column >= known[:, None, None])
        best = alike.all(2).to(torch.int64).argmax(1)
        places = (known[:, None] + torch.arange(width)).clamp(max=self.runs.shape[1] - 1)
        found = self.runs[best[:, None], places]
        return torch.where(places % 5 == 0, 1 << 40, found)


class Free(StepCosts):
    """Steps of any size take as long."""

    def lacks(self, num_tokens: int) -> bool:
        return False

    def __call__(self, num_tokens: int) -> float:
        return 1.0


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


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_are_the_same_if_the_device_drafts(family: tuple[Path, Any, Any], depth: int) -> None:
    folder, expected, runs = family
    with LLM(str(folder), **tight(folder.name), engine={"steps_in_flight": depth}) as llm:
        core: Any = llm._core
        core.runner.batch._speculator = OnDevice(runs)
        core.runner.batch._vocab_size = llm.boot.facts.vocab_size
        draft(llm, 3, None)
        check(answers(llm, preempted=False), expected)
        assert sum(core.stats.accepted) > 50
        assert core.stats.generated_tokens > 1.2 * core.stats.steps


@pytest.mark.parametrize("pipeline", [2, 3])
def test_every_stage_learns_what_was_accepted(
    family: tuple[Path, Any, Any], pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected, runs = family
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **tight(folder.name), parallel={"pipeline": pipeline}) as llm:
        draft(llm, 3, Knowing(runs))
        check(answers(llm, preempted=False), expected)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ["prompt_lookup", "suffix_tree", "prompt_lookup_device"])
def test_a_configured_speculator_drafts(name: str, depth: int, tmp_path: Path) -> None:
    """A penalty that rewards repetition makes a random model repeat itself."""
    folder = make(tmp_path, "qwen3-tied-odd-vocabulary")
    prompt = [5, 6, 7, 8, 9, 10] * 8
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, repetition_penalty=0.2)
    options = {**tight(folder.name), "max_model_len": 120, "engine": {"steps_in_flight": depth}}
    with LLM(str(folder), **options) as llm:
        expected = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids
    with LLM(str(folder), **options, speculation={"use": name, "num_drafts": 4}) as llm:
        core: Any = llm._core
        for costs in (core.scheduler._drafting.length.costs, Free()):
            core.scheduler._drafting.length.costs = costs
            assert llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids == expected
        assert sum(core.stats.accepted) > 5
        assert core.stats.speculator_failures == 0


def test_recurrent_layers_refuse_drafts(tmp_path: Path) -> None:
    folder = make(tmp_path, "mamba2-biases")
    with pytest.raises(ConfigError, match=r"recurrent state .* can't take back yet") as caught:
        LLM(str(folder), **tight(folder.name), speculation={"use": "prompt_lookup"})
    assert "speculation.use" in str(caught.value.hint)


def test_a_speculator_that_fails_is_not_called_again(family: tuple[Path, Any, Any], caplog: Any) -> None:
    class Wrong(Speculator):
        def __init__(self) -> None:
            self.calls = 0

        def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
            self.calls += 1
            return [1 << 20]

    folder, expected, _ = family
    with LLM(str(folder), **tight(folder.name)) as llm:
        wrong = Wrong()
        draft(llm, 3, wrong)
        check(answers(llm), expected)
        stats: Any = llm._core and llm._core.stats
        assert (wrong.calls, stats.speculator_failures) == (1, 1)
    assert "propose() returned 1048576, which is not a token id below" in caplog.text

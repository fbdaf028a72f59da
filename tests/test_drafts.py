"""Drafts on the real engine: requests are answered as without, whoever drafts and whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import pytest
from drafters import Free, Guessing, Knowing, OnDevice, draft, drafting
from installed import installed
from spread import FAMILIES, answers, check, make, tight
from threaded_ranks import ThreadedRanks

from llmk import LLM, SamplingParams
from llmk.api import ConfigError, Speculator
from llmk.config import load
from llmk.engine import launch
from llmk.planning.boot import boot
from llmk.tree import StateSpaceSizes

MIXER = """
from llmk.api import KernelSpec, Tier, hookimpl

@hookimpl
def llmk_ops():
    return [
        KernelSpec(
            id="quick.mixer", kind="op", op="state_space_mixer", implementation="quick_kernels:mixer", tier=Tier.NATIVE
        )
    ]
"""


@pytest.fixture(scope="module", params=FAMILIES)
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


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("kind", "most"), [("random", 2), ("knowing", 4)])
def test_answers_are_those_without_drafts(family: tuple[Path, Any, Any], depth: int, kind: str, most: int) -> None:
    folder, expected, runs = family
    with LLM(str(folder), **drafting(folder), engine={"steps_in_flight": depth}) as llm:
        draft(llm, most, Knowing(runs) if kind == "knowing" else Guessing())
        check(answers(llm, preempted=kind == "random"), expected)
        stats: Any = llm._core and llm._core.stats
        assert stats.generated_tokens > (1.5 * stats.steps if kind == "knowing" and depth == 1 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_answers_are_the_same_if_the_device_drafts(family: tuple[Path, Any, Any], depth: int) -> None:
    folder, expected, runs = family
    with LLM(str(folder), **drafting(folder), engine={"steps_in_flight": depth}) as llm:
        core: Any = llm._core
        core.runner.batch.draft_by(OnDevice(runs))
        draft(llm, 3, None)
        check(answers(llm, preempted=False), expected)
        assert sum(core.stats.accepted) > 50
        assert core.stats.generated_tokens > 1.2 * core.stats.steps


@pytest.mark.slow
def test_a_step_without_drafts_takes_in_those_before(family: tuple[Path, Any, Any]) -> None:
    class Seldom(Knowing):
        def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
            return super().propose(request, tokens, most) if calls.random() < 0.3 else []

    calls, prompt = Random(5), list(range(20, 31))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with LLM(str(family[0]), **drafting(family[0]), engine={"steps_in_flight": 1}) as llm:
        llm.core.scheduler._drafting = llm.core.scheduler.live.drafting = None
        expected = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids
        draft(llm, 4, Seldom([prompt + expected]))
        assert llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids == expected
        assert sum(llm.stats.accepted) > 3


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [2, 3])
def test_every_stage_learns_what_was_accepted(
    family: tuple[Path, Any, Any], pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected, runs = family
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **drafting(folder), parallel={"pipeline": pipeline}) as llm:
        draft(llm, 3, Knowing(runs))
        check(answers(llm, preempted=False), expected)


@pytest.mark.slow
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


def test_recurrent_layers_without_inputs_refuse_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateSpaceSizes, "inputs", lambda sizes, dtype: ())
    with pytest.raises(ConfigError, match=r"recurrent layers \(state_space_mixer\) can't take back") as caught:
        LLM(str(make(tmp_path, "mamba2-biases")), speculation={"use": "prompt_lookup"})
    assert "speculation.use" in str(caught.value.hint)


def test_a_kernel_that_does_not_know_drafts_is_passed_over(tmp_path: Path) -> None:
    folder = make(tmp_path, "mamba2-biases")
    modules = {"quick_kernels": "def mixer(*arguments): ..."}
    with installed(tmp_path / "site", "quick", dedent(MIXER), **modules):
        settings = {"model.path": str(folder), "plugins.trust": ["quick"]}
        plain = boot(load(settings)).plan.choice("op", "state_space_mixer")
        drafted = boot(load({**settings, "speculation.use": "prompt_lookup"})).plan.choice("op", "state_space_mixer")
    assert (plain.id, drafted.id) == ("quick.mixer", "reference.state_space_mixer")
    (reason,) = next(out for out in drafted.rejected if out.id == "quick.mixer").reasons
    assert (reason.code, reason.wanted) == ("not_understood", "max_drafts = 8")


def test_nothing_is_kept_of_drafts_where_nothing_drafts(tmp_path: Path) -> None:
    folder = make(tmp_path, "mamba2-biases")
    for options, tensors in ((tight(folder.name), 2), (drafting(folder), 4)):
        with LLM(str(folder), **options) as llm:
            runner: Any = llm.core.runner
            assert {len(cache) for cache in runner.caches} == {tensors}
            assert (runner.batch.accepted is None) == (tensors == 2)


@pytest.mark.slow
def test_a_speculator_that_fails_is_not_called_again(family: tuple[Path, Any, Any], caplog: Any) -> None:
    class Wrong(Speculator):
        def __init__(self) -> None:
            self.calls = 0

        def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
            self.calls += 1
            return [1 << 20]

    folder, expected, _ = family
    with LLM(str(folder), **drafting(folder)) as llm:
        wrong = Wrong()
        draft(llm, 3, wrong)
        check(answers(llm), expected)
        stats: Any = llm._core and llm._core.stats
        assert (wrong.calls, stats.speculator_failures) == (1, 1)
    assert "propose() returned 1048576, which is not a token id below" in caplog.text

"""Recorded steps on the real engine: answers are those of steps that are issued kernel by kernel.

The recorder here runs the step again, on the tensors that it was recorded with, as a device's graph would.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from paged_device import Always
from rerun import Rerun
from spread import answers, check, make, tight
from torch import OutOfMemoryError, Tensor

from llmk import LLM, SamplingParams
from llmk.api import Speculator, SpeculatorContext
from llmk.engine.device.graphs import (
    StepGraphs,
    StepShape,
    decoding_shapes,
    is_first,
    mixed_shapes,
    verifying_shapes,
    why_not_recorded,
)
from llmk.engine.scheduling.drafting import Drafting
from llmk.engine.text.output_processor import CompletionOutput
from llmk_testing.checkpoints import write_checkpoint

SETTINGS: dict[str, Any] = {"cache.num_blocks": 160, "cache.block_size": 4, "scheduler.max_num_batched_tokens": 24}
KINDS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=24, ignore_eos=True, logprobs=2),
    SamplingParams(seed=2, max_tokens=17, top_k=5, top_p=0.9, min_p=0.01, bad_words=("the",)),
    SamplingParams(temperature=0, max_tokens=20, prompt_logprobs=1, repetition_penalty=1.2, logit_bias={7: 1.0}),
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM, Rerun]]:
    """Without and with recorded steps."""
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")
    with ExitStack() as stack:
        plain, recorded = [stack.enter_context(LLM(str(folder), dtype="float32", **SETTINGS)) for _ in range(2)]
        graphs = Rerun()
        runner(recorded).record(graphs, [StepShape(size, size) for size in (1, 3, 6)])
        yield plain, recorded, graphs


def runner(llm: LLM) -> Any:
    assert llm._core is not None
    return llm._core.runner


def generate(llm: LLM, count: int, params: Any) -> list[CompletionOutput]:
    rng = Random(count)
    prompts = [[rng.randrange(3, 380) for _ in range(rng.randrange(1, 30))] for _ in range(count)]
    return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 9])
@pytest.mark.parametrize("mixed", [False, True])
def test_answers_are_those_of_steps_that_are_not_recorded(
    engines: tuple[LLM, LLM, Rerun], count: int, mixed: bool
) -> None:
    plain, recorded, graphs = engines
    before = graphs.replays
    params = [KINDS[number % 4 if mixed else 0] for number in range(count)]
    expected, found = generate(plain, count, params), generate(recorded, count, params)
    for one, two in zip(expected, found, strict=True):
        assert (one.token_ids, one.finish_reason) == (two.token_ids, two.finish_reason)
        assert [e.logprob for e in one.logprobs or ()] == pytest.approx(
            [e.logprob for e in two.logprobs or ()], abs=1e-4
        )
    assert graphs.replays > before + (10 if count <= 6 else 0)


SHAPES = [
    *(StepShape(size, size) for size in (1, 3, 6)),
    *(StepShape(tokens, requests) for tokens in (8, 24) for requests in (3, 9)),
    *(StepShape(requests * samples, requests, samples) for requests in (2, 9) for samples in (2, 5)),
]


@pytest.mark.parametrize("family", ["qwen3-tied-odd-vocabulary", "gemma2", "deepseek-v2-biases", "mixtral"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_steps_of_any_shape_are_replayed(family: str, drafts: int, tmp_path: Path) -> None:
    """Prompts, and drafts of different numbers, some of which are right, next to requests without."""
    folder = make(tmp_path, family)
    graphs = Rerun()
    with LLM(str(folder), **tight(family)) as llm:
        expected = answers(llm)
    with LLM(str(folder), **tight(family)) as llm:
        runner(llm).record(graphs, SHAPES)
        used: list[StepShape] = []
        steps, replay = runner(llm)._graphs, runner(llm)._graphs.run
        steps.run = lambda graph, *rest: used.append(graph.shape) or replay(graph, *rest)
        scheduler: Any = llm._core and llm._core.scheduler
        if drafts:
            vocab = llm.boot.facts.vocab_size
            repeating = Repeating(SpeculatorContext(vocab, drafts, 80))
            scheduler._drafting = scheduler.live.drafting = Drafting(Always(drafts), vocab, repeating)
        check(answers(llm, preempted=not drafts), expected)
    assert {shape.samples for shape in used} >= ({1, 2, 5} if drafts else {1})
    assert 24 in {shape.tokens for shape in used if shape.samples == 1}
    assert graphs.replays > len(used)


def test_steps_with_prompts_are_recorded_while_idle_or_once_long_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, "qwen3")
    later = [StepShape(tokens, 10) for tokens in (12, 14, 16, 20, 24)]
    with LLM(str(folder), dtype="float32", **SETTINGS) as llm:
        expected = [[output.token_ids for output in generate(llm, count, KINDS[:1] * count)] for count in range(1, 10)]
        runner(llm).record(Rerun(), decoding_shapes(9), later)
        steps, core = runner(llm)._graphs, llm._core
        assert core is not None
        core.can_prepare = True
        for left in (len(later) - 1, len(later) - 2):
            core.prepare()
            assert (len(steps._later), core.can_prepare) == (left, True)
        assert [graph.shape for graph in steps._others] == [later[2], later[4]], "powers of two, then the largest"
        assert [output.token_ids for output in generate(llm, 9, KINDS[:1] * 9)] == expected[-1]
        assert len(steps._later) == len(later) - 2, "the load was short"
        monkeypatch.setattr("llmk.engine.device.graphs._STEPS_BETWEEN", 2)
        for count, tokens in enumerate(expected, 1):
            assert [output.token_ids for output in generate(llm, count, KINDS[:1] * count)] == tokens
        assert len(steps._later) < len(later) - 2
        while core.can_prepare:
            core.prepare()
        assert [graph.shape for graph in steps._others] == later
        core.prepare()
        assert not core.can_prepare


def test_what_does_not_fit_any_more_ends_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Rerun()
    with LLM(str(write_checkpoint(tmp_path, "qwen3")), dtype="float32", **SETTINGS) as llm:
        expected = [output.token_ids for output in generate(llm, 5, KINDS[:1] * 5)]
        runner(llm).record(recorder, decoding_shapes(5), mixed_shapes(5, 24))
        monkeypatch.setattr(recorder, "capture", _no_memory)
        monkeypatch.setattr("llmk.engine.device.graphs._STEPS_BETWEEN", 0)
        assert [output.token_ids for output in generate(llm, 5, KINDS[:1] * 5)] == expected
        assert not runner(llm)._graphs._later
    assert "graphs: no more are recorded: full" in caplog.text


def _no_memory(_: Any) -> Any:
    raise OutOfMemoryError("full")


def test_a_step_that_would_be_padding_for_more_than_half_is_not_replayed(engines: tuple[LLM, LLM, Rerun]) -> None:
    _, recorded, _ = engines
    steps = StepGraphs(Rerun(), runner(recorded)._recorded, [StepShape(1, 1), StepShape(96, 6)], runner(recorded).build)
    assert steps.find(47, 6, 1) is None
    assert steps.find(48, 7, 1) is None
    assert steps.find(48, 6, 2) is None
    found = steps.find(48, 6, 1)
    assert found is not None
    assert found.shape == StepShape(96, 6)


class Repeating(Speculator):
    """Drafts from none to ``most`` tokens that have occurred."""

    def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
        return list(tokens[-1 : -1 - len(tokens) % (most + 1) : -1])


def test_recording_leaves_the_batch_as_it_was(engines: tuple[LLM, LLM, Rerun]) -> None:
    _, recorded, _ = engines
    batch = runner(recorded).batch
    before = [tensor.clone() for tensor in (batch.tokens, batch.computed, *batch.block_tables)]
    runner(recorded).record(Rerun(), [StepShape(2, 2), StepShape(9, 4), StepShape(6, 2, 3)])
    after = (batch.tokens, batch.computed, *batch.block_tables)
    assert all(map(Tensor.equal, before, after))


def test_sizes_reach_what_may_run_at_once() -> None:
    assert decoding_shapes(1) == [StepShape(1, 1, 1)]
    assert decoding_shapes(6) == [StepShape(size, size, 1) for size in (1, 2, 4, 6)]
    assert decoding_shapes(4096)[-1] == StepShape(1024, 1024, 1)
    sizes = [(2, 1, 2), (4, 2, 2), (3, 1, 3), (6, 2, 3), (4, 1, 4), (8, 2, 4)]
    assert verifying_shapes(2, 3) == [StepShape(*size) for size in sizes]
    assert verifying_shapes(4096, 8)[-1] == StepShape(64 * 9, 64, 9)
    assert mixed_shapes(1, 24) == [StepShape(16, 1), StepShape(24, 1)]
    assert {shape.requests for shape in mixed_shapes(256, 8192) if shape.tokens > 256} == {32, 128, 256}
    assert [shape.requests for shape in mixed_shapes(256, 8192) if shape.tokens == 48] == [32, 47]
    assert mixed_shapes(256, 1) == []
    assert not any(shape.decodes for shape in mixed_shapes(256, 8192))
    assert mixed_shapes(256, 8192)[-1] == StepShape(2048, 256)
    first = [shape.tokens for shape in mixed_shapes(256, 8192) if is_first(shape)]
    assert first == [64, 128, 256, 512, 1024, 2048]


def test_what_speaks_against_it_is_told(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_checkpoint(tmp_path, "qwen3")
    with caplog.at_level(logging.INFO, "llmk"), LLM(str(folder), dtype="float32", **SETTINGS) as llm:
        plan = llm.boot.plan
    assert "reference.attention at attention can't be recorded" in why_not_recorded(plan, decoding_shapes(2))
    assert why_not_recorded(plan, decoding_shapes(2), wanted=False) == "engine.graphs"
    assert "graphs: none (" in caplog.text

"""One and two steps in flight on the real engine: equal answers, whatever happens meanwhile, and no step that waits.

Sampling features, chunked prefill and preemption are compared in ``test_sampling.py``, alone and in company.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from served import LLMK
from torch.overrides import TorchFunctionMode

from llmk import LLM, SamplingParams
from llmk.engine.core import EngineCore
from llmk.engine.text.output_processor import CompletionOutput
from llmk.engine.wire.request import EngineRequest
from llmk_testing.checkpoints import write_checkpoint

SETTINGS: dict[str, Any] = {"cache.num_blocks": 128, "cache.block_size": 4, "scheduler.max_num_batched_tokens": 24}
SAMPLED = SamplingParams(seed=1, max_tokens=24, ignore_eos=True, logprobs=2)
KINDS = [
    SAMPLED,
    SamplingParams(seed=2, max_tokens=24, top_k=5, top_p=0.9, min_p=0.01, bad_words=("the",)),
    SamplingParams(temperature=0, max_tokens=24, prompt_logprobs=1, repetition_penalty=1.2, logit_bias={7: 1.0}),
    SamplingParams(seed=3, max_tokens=24, min_tokens=9, allowed_token_ids=tuple(range(2, 200)), presence_penalty=0.5),
]
MIXED = [KINDS[number % 4] for number in range(12)]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LLM]]:
    """With one step in flight, and with two."""
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")
    with ExitStack() as stack:
        options = [{**SETTINGS, "engine.steps_in_flight": depth} for depth in (1, 2)]
        engines = [stack.enter_context(LLM(str(folder), dtype="float32", **each)) for each in options]
        assert [core_of(llm).depth for llm in engines] == [1, 2]
        yield engines


def core_of(llm: LLM) -> EngineCore:
    assert llm._core is not None
    return llm._core


def prompts() -> list[list[int]]:
    rng = Random(3)
    shared = [rng.randrange(3, 380) for _ in range(20)]
    own = [[rng.randrange(3, 380) for _ in range(rng.randrange(1, 40))] for _ in range(12)]
    return [shared + prompt if number % 3 == 0 else prompt for number, prompt in enumerate(own)]


def generate(llm: LLM, params: Any) -> list[CompletionOutput]:
    return [output.outputs[0] for output in llm.generate(prompts(), params, use_tqdm=False)]


def assert_same(one: list[CompletionOutput], two: list[CompletionOutput]) -> None:
    """Log-probabilities to rounding: requests meet others in their batches."""
    for a, b in zip(one, two, strict=True):
        assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
        assert [e.logprob for e in a.logprobs] == pytest.approx([e.logprob for e in b.logprobs], abs=1e-4)


def test_answers_with_and_without_prefix_hits(engines: list[LLM]) -> None:
    for hits in (False, True):
        one, two = [llm.generate(prompts(), MIXED, use_tqdm=False) for llm in engines]
        assert_same([o.outputs[0] for o in one], [o.outputs[0] for o in two])
        for a, b in zip(one, two, strict=True):
            told = [[entry.logprob for entry in (o.prompt_logprobs or [None])[1:] if entry] for o in (a, b)]
            assert told[0] == pytest.approx(told[1], abs=1e-4)
            assert len(told[0]) == (len(a.prompt_token_ids) - 1 if a.prompt_logprobs else 0)
        assert all(a.num_cached_tokens >= hits for a in one if len(a.prompt_token_ids) > 8 and not a.prompt_logprobs)


def test_stop_strings(engines: list[LLM]) -> None:
    """The engine learns of them late: with two in flight it has sampled two more tokens by then."""
    whole = [one.text for one in generate(engines[0], SAMPLED)]
    params = [replace(SAMPLED, stop=(text[9:12],)) for text in whole]
    one, two = (generate(llm, params) for llm in engines)
    assert_same(one, two)
    assert [(each.text, each.finish_reason) for each in one] == [(t[: t.index(t[9:12])], "stop") for t in whole]
    assert not any(core_of(llm).has_work or core_of(llm).stats.used_blocks for llm in engines)


@pytest.mark.parametrize("index", [0, 1])
def test_aborts_while_steps_are_in_flight(engines: list[LLM], index: int) -> None:
    core, rng = core_of(engines[index]), Random(5)
    alone = {str(number): one.token_ids for number, one in enumerate(generate(engines[0], SAMPLED))}
    made: dict[str, list[int]] = {id: [] for id in alone}
    for id, prompt in zip(alone, prompts(), strict=True):
        core.add(EngineRequest(id=id, prompt_token_ids=prompt, params=SAMPLED, seed=1))
    aborted = set()
    while core.has_work:
        for output in core.step().outputs:
            assert output.id not in aborted
            made[output.id] += output.token_ids
        if rng.random() < 0.2:
            aborted.add(id := str(rng.randrange(12)))
            core.abort([id])
    assert 2 < len(aborted) < 10
    assert made == {id: tokens[: len(made[id])] if id in aborted else tokens for id, tokens in alone.items()}
    assert core.stats.used_blocks == 0


READS = {"tolist", "item", "numpy", "cpu", "nonzero", "masked_select", "unique", "__bool__", "__int__", "__index__"}


class Watch(TorchFunctionMode):
    """Notes calls that make the host wait for an asynchronous device: those whose results or shapes tensors decide."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.waits: list[str] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        indices = args[1] if name in ("__getitem__", "__setitem__") else ()
        masks = [getattr(index, "dtype", None) for index in (indices if isinstance(indices, tuple) else (indices,))]
        ragged = name == "repeat_interleave" and (kwargs or {}).get("output_size") is None
        self.calls += 1
        if name in READS or torch.bool in masks or ragged:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


def test_a_step_is_submitted_without_a_wait(engines: list[LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the reference attention's, which says so of its ``prepare``."""
    core, watch = core_of(engines[1]), Watch()
    runner: Any = core.runner
    prepare, submit = runner._prepare, core._submit

    def unwatched(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return prepare(*args)

    def watched(plan: Any) -> Any:
        with watch if plan.work else nullcontext():
            return submit(plan)

    monkeypatch.setattr(runner, "_prepare", unwatched)
    monkeypatch.setattr(core, "_submit", watched)
    engines[1].generate(prompts(), MIXED, use_tqdm=False)
    assert watch.calls > 1000
    assert not watch.waits


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.tolist(), lambda t: t[0].item(), lambda t: t[t > 1], lambda t: t.any() and 1, torch.nonzero,
        torch.repeat_interleave,
    ],
)  # fmt: skip
def test_the_watch_sees(read: Callable[[torch.Tensor], Any]) -> None:
    with Watch() as watch:
        read(torch.arange(3))
    assert watch.waits


@pytest.mark.parametrize(
    ("options", "told"),
    [([], "1 (the host itself runs the steps"), (["--engine.steps-in-flight", "2"], "2 (engine.steps_in_flight)")],
)
def test_explain_tells_how_many_and_why(options: list[str], told: str) -> None:
    done = subprocess.run([*LLMK, "explain", *options], capture_output=True, text=True, timeout=60)
    assert f"steps in flight: {told}" in done.stdout

"""Grammars on the real engine and the demo model: every output matches, and nothing else about it changes that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grammars as benchmark
import jsonschema
import pytest
from paged_device import Always
from threaded_ranks import ThreadedRanks

from llmk import LLM, SamplingParams
from llmk.api import RequestError
from llmk.engine import launch
from llmk.engine.text.guarded_grammar import GuardedGrammar
from llmk.engine.wire.request import EngineRequest, RequestContext

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_number": {"type": "integer", "minimum": 1, "maximum": 9999},
        "state": {"enum": ["open", "paid", "cancelled"]},
        "customer": {
            "type": "object",
            "properties": {"first_name": {"type": "string", "maxLength": 8}, "since": {"$ref": "#/$defs/year"}},
            "required": ["first_name", "since"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,5}$"}, "maxItems": 2},
    },
    "required": ["order_number", "state", "customer"],
    "additionalProperties": False,
    "$defs": {"year": {"type": "integer", "minimum": 1990, "maximum": 2030}},
}
CHOICES = ["positive", "negative", "neither of both"]
PHONE = r"(\+49|0)[1-9]\d{2,6}"
GRAMMARS: tuple[dict[str, Any], ...] = ({"json": ORDER}, {"choice": CHOICES}, {"regex": PHONE})
# Without penalties, the model writes spaces where it may, until its output is cut.
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "frequency_penalty": 1.0},
    {"seed": 1, "temperature": 1.0, "logprobs": 2, "n": 2, "frequency_penalty": 1.0},
    {"seed": 2, "temperature": 1.5, "top_k": 40, "presence_penalty": 0.7, "frequency_penalty": 1.0, "min_tokens": 5},
)
PROMPT = "Write down an order of Mr Smith, of 3 March 2021, as JSON.\n"
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 320,
    "cache": {"block_size": 8, "num_blocks": 300},
    "scheduler": {"max_num_batched_tokens": 48, "max_num_seqs": 8},
}


def matches(grammar: dict[str, Any], text: str) -> None:
    """Fails unless an output matches, as others than the compiler see it."""
    if "json" in grammar:
        jsonschema.validate(json.loads(text), grammar["json"], jsonschema.Draft202012Validator)
    elif "choice" in grammar:
        assert text in grammar["choice"]
    else:
        assert re.fullmatch(grammar["regex"], text), text


def jobs() -> list[tuple[str, SamplingParams, dict[str, Any] | None]]:
    """Prompts, parameters and grammars: nine with one, and three without."""
    found: list[tuple[str, SamplingParams, dict[str, Any] | None]] = []
    for number, sampling in enumerate(SAMPLING):
        found += [
            (PROMPT + "x" * number, SamplingParams(**sampling, max_tokens=200, structured_outputs=grammar), grammar)
            for grammar in GRAMMARS
        ]
        found.append((PROMPT, SamplingParams(**sampling, max_tokens=30), None))
    return found


def answers(llm: LLM) -> list[Any]:
    """Tokens of all choices, each of which matches its grammar."""
    asked = jobs()
    outputs = llm.generate([prompt for prompt, _, _ in asked], [params for _, params, _ in asked], use_tqdm=False)
    tokens = []
    for output, (_, params, grammar) in zip(outputs, asked, strict=True):
        assert len(output.outputs) == params.n
        for choice in output.outputs:
            tokens.append(choice.token_ids)
            if grammar is not None:
                assert choice.finish_reason == "stop", choice.text
                matches(grammar, choice.text)
            if params.logprobs is not None:
                assert [entry.token_id for entry in choice.logprobs] == choice.token_ids
    return tokens


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    with LLM(**SMALL) as llm:
        return answers(llm)


VARIANTS: dict[str, dict[str, Any]] = {
    "two steps in flight": {"engine": {"steps_in_flight": 2}},
    "preempted": {
        "max_model_len": 200,
        "cache": {"block_size": 8, "num_blocks": 26},
        "engine": {"steps_in_flight": 2},
    },
    "host drafts": {"speculation": {"use": "prompt_lookup", "num_drafts": 3}},
    "host drafts, two steps in flight": {
        "speculation": {"use": "suffix_tree", "num_drafts": 4},
        "engine": {"steps_in_flight": 2},
    },
    "device drafts": {
        "speculation": {"use": "prompt_lookup_device", "num_drafts": 3},
        "engine": {"steps_in_flight": 2},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_match_and_are_the_same_however_they_are_run(variant: str, expected: list[Any]) -> None:
    with LLM(**{**SMALL, **VARIANTS[variant]}) as llm:
        scheduler: Any = llm.core.scheduler
        if scheduler._drafting is not None:
            scheduler._drafting.length = Always(3)
        assert answers(llm) == expected
        assert bool(llm.stats.preemptions) == (variant == "preempted")
        assert answers(llm) == expected, "with prefixes in the cache"


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_outputs_match_on_several_ranks(tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(**SMALL, parallel={"tensor": tensor, "pipeline": pipeline}) as llm:
        answers(llm)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_grammar_forces_is_drafted(depth: int) -> None:
    """Of an output without a choice, few tokens take a step of their own."""
    params = SamplingParams(temperature=0, structured_outputs={"choice": ["a long text that nothing else may replace"]})
    with LLM(**SMALL) as llm:
        (plain,) = llm.generate(PROMPT, params, use_tqdm=False)
    options = {"engine": {"steps_in_flight": depth}, "speculation": {"use": "prompt_lookup", "num_drafts": 4}}
    with LLM(**SMALL, **options) as llm:
        scheduler: Any = llm.core.scheduler
        scheduler._drafting.length = Always(4)
        (drafted,) = llm.generate(PROMPT, params, use_tqdm=False)
        stats = llm.stats
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    assert stats.generated_tokens > 2 * stats.steps, (stats.generated_tokens, stats.steps)


@pytest.fixture(scope="module")
def small() -> Any:
    with LLM(**SMALL, engine={"steps_in_flight": 2}) as llm:
        yield llm


def sequences(llm: LLM, params: Sequence[SamplingParams], **fields: Any) -> list[EngineRequest]:
    made: list[EngineRequest] = []
    for number, each in enumerate(params):
        made += llm._input_processor.sequences(PROMPT, each, RequestContext(str(number)))
    for request in made:
        for name, value in fields.items():
            setattr(request, name, value)
    return made


def run(llm: LLM, requests: Sequence[EngineRequest]) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Tokens by request, and what ended it: the reason, or the last output where that is an error."""
    core = llm.core
    for request in requests:
        core.add(request)
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    ends: dict[str, Any] = {}
    while core.has_work:
        for output in core.step().outputs:
            tokens[output.id] += output.token_ids
            if output.finish_reason is not None:
                assert output.id not in ends
                ends[output.id] = output if output.error else output.finish_reason
    return tokens, ends


def test_what_leaves_no_token_fails_its_request_alone(small: LLM) -> None:
    digits = {"regex": "[0-9]{8}"}
    letter = small.tokenizer.encode("x", add_special_tokens=False)[0]
    params = [
        SamplingParams(temperature=0, structured_outputs=digits),
        SamplingParams(temperature=0, structured_outputs=digits, allowed_token_ids=[letter]),
        SamplingParams(temperature=0, structured_outputs=digits, logit_bias={letter: 100}),
        SamplingParams(temperature=0, max_tokens=12),
    ]
    tokens, ends = run(small, sequences(small, params))
    error = ends.pop("1/0")
    assert error.error_code == RequestError.code
    assert error.error.startswith("no token may be sampled: structured_outputs, allowed_token_ids, logit_bias and")
    assert ends == {"0/0": "stop", "2/0": "stop", "3/0": ends["3/0"]}
    for id in ("0/0", "2/0"):
        assert re.fullmatch("[0-9]{8}", small.tokenizer.decode(tokens[id], skip_special_tokens=True))


def test_a_grammar_has_the_last_word_over_bans_and_lengths(small: LLM) -> None:
    one = {"choice": ["yes"]}
    params = [
        SamplingParams(temperature=0, structured_outputs=one, bad_words=["yes"]),
        SamplingParams(temperature=0, structured_outputs=one, min_tokens=40),
        SamplingParams(temperature=0, structured_outputs={"regex": "[a-c]{30}"}, max_tokens=4),
        SamplingParams(temperature=0, structured_outputs={"regex": "ab+"}, stop="bb", max_tokens=40),
    ]
    outputs = [output.outputs[0] for output in small.generate([PROMPT] * 4, params, use_tqdm=False)]
    assert [output.text for output in outputs[:2]] == ["yes", "yes"]
    assert (len(outputs[2].token_ids), outputs[2].finish_reason) == (4, "length")
    assert re.fullmatch("[a-c]+", outputs[2].text)
    assert outputs[3].text in ("a", "ab")


def test_a_sequence_goes_on_in_another_engine(small: LLM) -> None:
    """From wherever the engine before it came to."""
    for grammar in GRAMMARS:
        params = SamplingParams(seed=5, max_tokens=200, structured_outputs=grammar)
        whole, ends = run(small, sequences(small, [params]))
        assert ends == {"0/0": "stop"}
        for done in (1, len(whole["0/0"]) // 2, len(whole["0/0"]) - 1):
            rest, _ = run(small, sequences(small, [params], generated_token_ids=whole["0/0"][:done]))
            assert whole["0/0"][:done] + rest["0/0"] == whole["0/0"]


def test_aborted_sequences_leave_nothing(small: LLM) -> None:
    core = small.core
    params = SamplingParams(structured_outputs={"json": ORDER}, max_tokens=200, seed=3, frequency_penalty=0.3)
    for steps in (0, 1, 2, 5):
        requests = sequences(small, [params] * 4)
        for request in requests:
            core.add(request)
        for _ in range(steps):
            core.step()
        core.abort([request.id for request in requests])
        while core.has_work:
            assert not core.step().outputs
        assert core.stats.waiting == core.stats.running == 0
    tokens, ends = run(small, sequences(small, [params]))
    assert ends["0/0"] == "stop", tokens


def test_python_names_what_is_wrong(small: LLM) -> None:
    for grammar, message in (({"regex": "(a"}, "unclosed group"), ({"json": "{"}, "it is not a JSON schema")):
        with pytest.raises(RequestError, match=message) as caught:
            small.generate(PROMPT, SamplingParams(structured_outputs=grammar), use_tqdm=False)
        assert caught.value.param == "structured_outputs"


def test_without_the_wheel_grammars_are_refused(tmp_path: Path) -> None:
    with (
        LLM(**SMALL, select={"grammar": {"use": "none"}}) as llm,
        pytest.raises(RequestError, match="can't be enforced"),
    ):
        llm.generate(PROMPT, SamplingParams(structured_outputs={"regex": "a"}), use_tqdm=False)


@pytest.mark.slow
def test_a_small_run_of_the_benchmark() -> None:
    options = ("--outputs", "40", "--schemas", "20", "--rounds", "2")
    run = subprocess.run([sys.executable, benchmark.__file__, *options], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert "invalid: 0 of 40 outputs of 34 grammars" in run.stdout
    assert "steps in flight: 2 (a thread stands for the device)" in run.stdout
    assert "masks filled while the step's forward pass runs: " in run.stdout
    assert "host per step without constrained rows: " in run.stdout


def test_the_benchmark_sees_what_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask that allows all."""

    def fill(grammar: GuardedGrammar, bits: memoryview) -> None:
        bits.cast("B")[:] = b"\xff" * bits.nbytes

    monkeypatch.setattr(GuardedGrammar, "fill", fill)
    monkeypatch.setattr(GuardedGrammar, "_fill_together", lambda grammars, rows: False)
    monkeypatch.setattr(GuardedGrammar, "accept", lambda grammar, tokens: None)
    monkeypatch.setattr(benchmark, "MOST_TOKENS", 12)
    engine = benchmark.Engine({"model.dtype": "float32", "cache.memory_gib": 0.25})
    asked = [("regex", "[0-9]+x{4}"), None, ("json", {"enum": [1, 2]}), ("choice", ["never so"])]
    counts, wrong = benchmark.validate(engine, asked)
    engine.core.close()
    assert sum(counts.values()) == 4
    assert len(wrong) == 3

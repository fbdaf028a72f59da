"""Two phases on the real engine: masks follow the forward pass, and constrain each row by what came before it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rerun import Rerun
from spread import make, tight
from threaded_ranks import ThreadedRanks

from llmk import LLM, SamplingParams
from llmk.api import Grammar, PluginError
from llmk.engine import launch
from llmk.engine.device.graphs import StepShape
from llmk.engine.text.guarded_grammar import GuardedGrammar
from llmk.engine.wire.request import RequestContext

PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=17, top_k=9, presence_penalty=0.5, ignore_eos=True, logprobs=1),
    SamplingParams(seed=2, temperature=2.0, max_tokens=24, ignore_eos=True),
]


class Residues(Grammar):
    """Allows tokens whose rest by 7 is that of all tokens before; fails after ``patience`` tokens."""

    def __init__(self, vocab: int, patience: int = 1000) -> None:
        self.vocab, self.patience = vocab, patience
        self.tokens: list[int] = []

    def fill(self, bits: memoryview) -> None:
        assert not any(bits)
        if len(self.tokens) >= self.patience:
            raise PluginError("out of patience")
        for token in range(sum(self.tokens) % 7, self.vocab, 7):
            bits[token // 32] |= 1 << token % 32 if token % 32 < 31 else -(1 << 31)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            assert token % 7 == sum(self.tokens) % 7
            self.tokens.append(token)

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[-num_tokens:]


def run(llm: LLM, patience: int = 1000) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Tokens and errors by request, of which every other has a grammar; more than fit at once."""
    core: Any = llm._core
    rng = Random(4)
    for number in range(12):
        prompt = [rng.randrange(3, 380) for _ in range(rng.randrange(1, 30))]
        for request in llm._input_processor.sequences(prompt, PARAMS[number % 3], RequestContext(str(number))):
            grammar = Residues(llm.boot.facts.vocab_size, patience) if number % 2 else None
            core.scheduler.add(request, grammar and GuardedGrammar(grammar, "test.residues"))
    tokens: dict[str, list[int]] = {}
    errors: dict[str, str] = {}
    while core.has_work:
        for output in core.step().outputs:
            tokens.setdefault(output.id, []).extend(output.token_ids)
            if output.error:
                errors[output.id] = output.error
    return tokens, errors


def check(tokens: dict[str, list[int]]) -> None:
    for number in range(12):
        found = tokens[f"{number}/0"]
        assert len(found) == PARAMS[number % 3].max_tokens
        fits = [token % 7 == sum(found[:at]) % 7 for at, token in enumerate(found)]
        assert all(fits) if number % 2 else not all(fits)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("checkpoint"), "qwen3-tied-odd-vocabulary")


@pytest.mark.parametrize("recorded", [False, True])
def test_every_token_is_allowed_with_one_and_two_steps_in_flight(folder: Path, recorded: bool) -> None:
    found = []
    for depth in (1, 2):
        with LLM(str(folder), **tight(folder.name), engine={"steps_in_flight": depth}) as llm:
            if recorded:
                runner: Any = llm._core and llm._core.runner
                runner.record(Rerun(), [StepShape(2, 2), StepShape(8, 8), StepShape(24, 8)])
            tokens, errors = run(llm)
            assert not errors
            check(tokens)
            found.append(tokens)
    assert found[0] == found[1]


def test_a_grammar_that_raises_fails_its_request_alone(folder: Path) -> None:
    with LLM(str(folder), **tight(folder.name), engine={"steps_in_flight": 2}) as llm:
        tokens, errors = run(llm, patience=5)
    assert errors == {f"{number}/0": "out of patience" for number in range(1, 12, 2)}
    assert all(
        len(tokens[f"{number}/0"]) == (5 if number % 2 else PARAMS[number % 3].max_tokens) for number in range(12)
    )


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_all_ranks_get_the_masks(folder: Path, tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **tight(folder.name), parallel={"tensor": tensor, "pipeline": pipeline}) as llm:
        tokens, errors = run(llm)
    assert not errors
    check(tokens)

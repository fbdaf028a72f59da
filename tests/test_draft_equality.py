"""Drafts change no token: random requests on random engines, with and without, over all kinds of caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import pytest
from drafters import Guessing, Knowing, OnDevice, draft
from equal_tokens import Displacing
from installed import installed
from spread import FAMILIES, make

from llmk import LLM, SamplingParams
from llmk.api import Speculator, SpeculatorContext
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.wire.grammar_params import GrammarParams
from llmk_speculators.lookup import PromptLookup
from llmk_speculators.suffix_tree import SuffixTreeSpeculator

SPECS = """
from llmk.api import LogitsProcessorSpec, hookimpl

@hookimpl
def llmk_logits_processors():
    return [LogitsProcessorSpec(id="slopes.slope", implementation="slopes_processors:Slope")]
"""
PROCESSORS = """
import torch

class Slope:
    '''Prefers tokens near the one before, the more the longer the text is.'''

    def __init__(self, batch):
        self.batch = batch

    def enter(self, slot, request):
        pass

    def leave(self, slot):
        pass

    def apply(self, logits, rows):
        last = self.batch.tokens[rows.index, rows.lengths - 1].long()
        distance = (torch.arange(logits.shape[1]) - last[:, None]).abs()
        return logits - 1e-3 * distance * rows.lengths[:, None]
"""
OPTIONS = {"min_match": 1, "max_match": 3, "max_spec_factor": 4.0}


@pytest.fixture(scope="module", autouse=True)
def processors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A logits processor that reads each row's own length."""
    site = tmp_path_factory.mktemp("site")
    with installed(site, "slopes", dedent(SPECS), slopes_processors=dedent(PROCESSORS)):
        yield


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each family that was needed so far."""
    return {"": tmp_path_factory.mktemp("checkpoints")}


@dataclass(frozen=True)
class Answers:
    """What a batch was answered: exact parts, and log-probabilities."""

    exact: list[Any]
    logprobs: list[float]


def params_of(rng: Random) -> SamplingParams:
    """How one request is sampled, with several features at once."""
    options: dict[str, Any] = {"max_tokens": rng.randrange(1, 28), "ignore_eos": rng.random() < 0.7}
    if rng.random() < 0.4:
        options["temperature"] = 0
    else:
        options |= {"seed": rng.randrange(1 << 20), "temperature": rng.choice((0.5, 1.0))}
        options |= rng.choice(({}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1, "top_k": 30}))
    features: list[dict[str, Any]] = [
        {"repetition_penalty": rng.choice((0.6, 1.4))},
        {"presence_penalty": 0.8, "frequency_penalty": rng.choice((-0.5, 0.4))},
        {"min_tokens": min(5, options["max_tokens"]), "stop_token_ids": tuple(range(3, 60))},
        {"stop_token_ids": tuple(range(3, 23))},
        {"logprobs": rng.randrange(3)},
        {"prompt_logprobs": 1},
        {"bad_word_ids": (*((token,) for token in range(40, 90)), (7, 8))},
        {"logit_bias": dict.fromkeys(range(100, 106), 4.0)},
        {"allowed_token_ids": tuple(range(100, 140))},
        {"n": 2},
        {"logits_processors": {"slopes.slope": {}}},
    ]
    for feature in rng.sample(features, rng.randrange(4)):
        options |= feature
    if rng.random() < 0.15:
        options = {key: options[key] for key in ("max_tokens", "seed", "temperature") if key in options}
        options["structured_outputs"] = GrammarParams(regex="[a-z ]{4,40}")
    return SamplingParams(**options)


def engine_of(rng: Random, family: str) -> dict[str, Any]:
    """Settings: small blocks, steps and pools, so that prompts are chunked and sequences preempted."""
    return {
        "dtype": "float32",
        "max_model_len": 80,
        "cache.block_size": rng.choice((4, 8)),
        "cache.state_block_size": rng.choice((8, 16)),
        "cache.num_blocks": 100 if "mamba" in family or "next" in family else 36,
        "cache.prefix_caching": rng.random() < 0.7,
        "scheduler.max_num_batched_tokens": rng.choice((16, 24, 64)),
        "scheduler.max_num_seqs": rng.choice((3, 8)),
        "scheduler.chunked_prefill": rng.random() < 0.8,
        "engine.steps_in_flight": rng.choice((1, 2)),
        "speculation": {"use": "prompt_lookup", "num_drafts": 5},
    }


def batches_of(rng: Random) -> list[list[tuple[list[int], SamplingParams]]]:
    """Two batches; the second has prefixes of the first."""
    prompts = [[rng.randrange(3, 380) for _ in range(rng.choice((1, 3, 9, 20, 40)))] for _ in range(6)]
    prompts[1] = prompts[1][:4] * 8
    first = [(prompt, params_of(rng)) for prompt in prompts]
    return [first, [(rng.choice(prompts) + prompts[0][:3], params_of(rng)) for _ in range(4)]]


def answer(llm: LLM, batches: list[list[tuple[list[int], SamplingParams]]]) -> Answers:
    """All batches, one after the other."""
    found = Answers([], [])
    for batch in batches:
        for result in llm.generate([prompt for prompt, _ in batch], [params for _, params in batch], use_tqdm=False):
            for output in result.outputs:
                found.exact.append((output.token_ids, output.finish_reason))
                entries = [*output.logprobs, *(result.prompt_logprobs or ())[1:]]
                found.exact.append([(entry.token_id, entry.rank) for entry in entries])
                found.logprobs.extend(entry.logprob for entry in entries)
    return found


def recorded(llm: LLM, batches: list[list[tuple[list[int], SamplingParams]]]) -> tuple[Answers, list[list[int]]]:
    """The answers without drafts, and the tokens of all sequences."""
    live, runs = llm.core.scheduler.live, list[list[int]]()
    finish = live.finish

    def noted(sequence: Any, **options: Any) -> None:
        runs.append(list(sequence.tokens))
        finish(sequence, **options)

    live.finish = noted  # type: ignore[method-assign]
    llm.core.scheduler._drafting = live.drafting = None
    answers = answer(llm, batches)
    live.finish = finish  # type: ignore[method-assign]
    return answers, runs


def speculators(rng: Random, vocab_size: int, runs: list[list[int]]) -> list[Speculator | None]:
    """Two of those that draft on the host, and the device, which is ``None``."""
    context = SpeculatorContext(vocab_size, 5, 80, OPTIONS)
    host = [Guessing(), Knowing(runs), PromptLookup(context), SuffixTreeSpeculator(context)]
    return [*rng.sample(host, 2), None]


QUICK = [pytest.param(family, 0, id=family) for family in FAMILIES]
SLOW = [
    pytest.param(family, seed, id=f"{family}-{seed}", marks=pytest.mark.slow)
    for family in FAMILIES
    for seed in range(1, 9)
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), [*QUICK, *SLOW])
def test_tokens_are_those_without_drafts(family: str, seed: int, checkpoints: dict[str, Path]) -> None:
    rng = Random(f"{family} {seed}")
    folder = checkpoints.get(family) or checkpoints.setdefault(family, make(checkpoints[""], family))
    settings, batches = engine_of(rng, family), batches_of(rng)
    with LLM(str(folder), **settings) as llm:
        core: Any = llm.core
        if llm.boot.facts.recurrent:  # of which a request needs few blocks however long it is
            core.scheduler.live.policy = GuardedPolicy(Displacing())
        expected, runs = recorded(llm, batches)
        assert sum(core.stats.drafted) == 0
        for speculator in speculators(rng, llm.boot.facts.vocab_size, runs):
            if speculator is None:
                core.runner.batch.draft_by(OnDevice(runs))
            draft(llm, rng.randrange(1, 6), speculator)
            found = answer(llm, batches)
            assert found.exact == expected.exact, (settings, speculator)
            assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert sum(core.stats.accepted) > 10
        assert core.stats.speculator_failures == 0

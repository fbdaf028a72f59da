"""Sampling through the whole engine on a tiny checkpoint in float32: alone and in company, against transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from llmk import LLM, SamplingParams
from llmk.api import RequestError
from llmk_testing.checkpoints import write_checkpoint

PROMPTS = ["The scheduler says which", "A small core", "Numbers 0123", "東京 and café"]
LONG = "The scheduler says which requests run, how many tokens each computes, and which blocks they own. " * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


def make(folder: Path, **settings: Any) -> LLM:
    return LLM(str(folder), dtype="float32", seed=1, **{"cache.num_blocks": 128, **settings})


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with make(folder) as llm:
        yield llm


def tokens(llm: LLM, prompt: Any, params: SamplingParams) -> list[int]:
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output.outputs[0].token_ids


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    """transformers' model of the same checkpoint."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def generated(oracle: Any, prompt: Sequence[int], **options: Any) -> list[int]:
    """transformers' greedy answer of 16 tokens."""
    config = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None, "pad_token_id": 0}
    out = oracle.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), **config, **options)
    return out[0, len(prompt) :].tolist()


GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_repetition_penalty_equals_transformers(llm: LLM, oracle: Any, prompt: str) -> None:
    ids = llm.tokenizer.encode(prompt)
    ours = tokens(llm, ids, replace(GREEDY, repetition_penalty=1.5))
    assert ours == generated(oracle, ids, repetition_penalty=1.5)
    assert ours != tokens(llm, ids, GREEDY)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_bad_words_equal_transformers(llm: LLM, oracle: Any, prompt: str) -> None:
    """transformers bans also what the prompt began; these prompts begin none."""
    ids = llm.tokenizer.encode(prompt)
    plain = tokens(llm, ids, GREEDY)
    words = ((plain[0],), tuple(plain[3:5]), tuple(plain[5:8]))
    ours = tokens(llm, ids, replace(GREEDY, bad_word_ids=words))
    assert ours == generated(oracle, ids, bad_words_ids=[list(word) for word in words])
    assert ours != plain
    assert plain[0] not in ours
    for word in words:
        assert all(tuple(ours[i : i + len(word)]) != word for i in range(len(ours)))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_openai_penalties_by_definition(llm: LLM, oracle: Any, prompt: str) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c over what was sampled before."""
    ids = llm.tokenizer.encode(prompt)
    known = list(ids)
    with torch.inference_mode():
        for _ in range(16):
            logits = oracle(torch.tensor([known])).logits[0, -1]
            counts = torch.bincount(torch.tensor(known[len(ids) :], dtype=torch.long), minlength=logits.numel())
            known.append(int((logits - counts * 1.2 - (counts > 0) * 0.7).argmax()))
    ours = tokens(llm, ids, replace(GREEDY, frequency_penalty=1.2, presence_penalty=0.7))
    assert ours == known[len(ids) :]


def test_a_word_is_banned_with_and_without_space(llm: LLM) -> None:
    sampled = SamplingParams(seed=3, max_tokens=100, ignore_eos=True, temperature=1.5)
    plain = llm.generate(LONG, sampled, use_tqdm=False)[0].outputs[0].token_ids
    word = next(text for id in plain if (text := llm.tokenizer.decode([id]).strip()).isalpha() and text.isascii())
    banned = replace(sampled, bad_words=(word,))
    ids = tokens(llm, LONG, banned)
    assert ids != plain
    spelled = [llm.tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}")]
    assert all(ids[i : i + len(s)] != s for s in spelled for i in range(len(ids)))


def test_allowed_tokens_are_the_only_ones(llm: LLM) -> None:
    allowed = (7, 40, 41, 300)
    params = SamplingParams(seed=5, max_tokens=64, allowed_token_ids=allowed, temperature=5)
    assert set(tokens(llm, PROMPTS[0], params)) == set(allowed)
    every = replace(params, bad_word_ids=((7,), (40,), (41,), (300,)), max_tokens=4)
    assert set(tokens(llm, PROMPTS[0], every)) <= set(allowed), "what is allowed holds where all of it is banned"


def test_min_tokens_holds_for_eos_and_stop_tokens(llm: LLM) -> None:
    (eos,) = llm.tokenizer.eos_token_ids
    for end, params in (
        (eos, {}),
        (77, {"stop_token_ids": (77,)}),
        (77, {"stop_token_ids": (77,), "ignore_eos": True}),
    ):
        eager = SamplingParams(temperature=0, max_tokens=12, logit_bias={end: 100.0}, **params)
        assert tokens(llm, PROMPTS[0], eager) == [end]
        ids = tokens(llm, PROMPTS[0], replace(eager, min_tokens=5))
        assert ids.index(end) == 5
        assert len(ids) == 6


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {99999: 1.0}},
        {"allowed_token_ids": (1, 99999)},
        {"bad_word_ids": ((1, 99999),)},
        {"stop_token_ids": (99999,)},
    ],
)
def test_ids_outside_the_vocabulary_are_named(llm: LLM, params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="99999") as caught:
        llm.generate("x", SamplingParams(**params), use_tqdm=False)
    assert caught.value.param in (*params, "bad_words")


@pytest.mark.parametrize(
    "params",
    [{"logit_bias": {1: math.nan}}, {"logit_bias": {1: math.inf}}, {"allowed_token_ids": ()}, {"bad_words": ("",)}],
)
def test_what_means_nothing_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**params)
    assert caught.value.param in params


MIXED = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=20),
    SamplingParams(seed=2, max_tokens=24, top_k=5, temperature=0.7),
    SamplingParams(seed=3, max_tokens=17, top_p=0.6, min_p=0.05, repetition_penalty=1.3),
    SamplingParams(seed=4, max_tokens=20, presence_penalty=1.0, frequency_penalty=0.5, logprobs=3),
    SamplingParams(seed=5, max_tokens=20, min_tokens=9, logit_bias={2: 30.0}, stop_token_ids=(9, 10)),
    SamplingParams(seed=6, max_tokens=20, allowed_token_ids=tuple(range(50, 90)), bad_words=("the", "and")),
    SamplingParams(temperature=0, max_tokens=30, prompt_logprobs=2, bad_words=("request", "plugin", "e")),
    SamplingParams(temperature=0, max_tokens=13, logprobs=0, repetition_penalty=1.2),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 4, "max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 24, "cache.num_blocks": 40, "cache.block_size": 4, "max_model_len": 160},
    ],
    ids=["together", "chunked", "preempted"],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_gives_the_same_alone_and_in_company(
    folder: Path, llm: LLM, settings: dict[str, Any], depth: int
) -> None:
    prompts = [PROMPTS[i % len(PROMPTS)] + LONG[: 40 * (i % 3)] for i in range(3 * len(MIXED))]
    params = [MIXED[i % len(MIXED)] for i in range(len(prompts))]
    alone = [llm.generate(p, sp, use_tqdm=False)[0] for p, sp in zip(prompts, params, strict=True)]
    with make(folder, **settings, **{"engine.steps_in_flight": depth}) as other:
        assert other._core is not None
        assert other._core.depth == depth
        together = other.generate(prompts, params, use_tqdm=False)
        assert bool(other._core.stats.preemptions) == ("cache.num_blocks" in settings)
    for one, many in zip(alone, together, strict=True):
        (a,), (b,) = one.outputs, many.outputs
        assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
        assert_close(a.logprobs, b.logprobs)
        assert_close((one.prompt_logprobs or [None])[1:], (many.prompt_logprobs or [None])[1:])


def assert_close(left: Sequence[Any], right: Sequence[Any]) -> None:
    assert [(e.token_id, e.rank, [id for id, _ in e.top]) for e in left] == [
        (e.token_id, e.rank, [id for id, _ in e.top]) for e in right
    ]
    assert [e.logprob for e in left] == pytest.approx([e.logprob for e in right], abs=1e-4)


@pytest.mark.parametrize("budget", [8, 50, 2048])
def test_prompt_logprobs_equal_transformers(folder: Path, oracle: Any, budget: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("llmk.engine.sampling.prompt_logprobs.ROWS", 7)
    rows: list[int] = []
    with make(folder, max_num_batched_tokens=budget) as llm:
        assert llm._core is not None
        scorer: Any = llm._core.runner.scorer  # type: ignore[attr-defined]
        logits = scorer._logits
        scorer._logits = lambda hidden: rows.append(len(hidden)) or logits(hidden)
        ids = llm.tokenizer.encode(LONG)
        llm.generate(LONG, GREEDY, use_tqdm=False)
        (output,) = llm.generate(LONG, replace(GREEDY, prompt_logprobs=4), use_tqdm=False)
        assert output.num_cached_tokens == 0, "hits would leave positions without logits"
        assert tokens(llm, LONG, GREEDY) == output.outputs[0].token_ids
        assert llm.generate(LONG, GREEDY, use_tqdm=False)[0].num_cached_tokens > 0
    assert sum(rows) == len(ids) - 1
    assert max(rows) == 7, "logits are computed a few rows at a time"
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0].log_softmax(-1)
    told = output.prompt_logprobs
    assert told is not None
    assert told[0] is None
    assert len(told) == len(ids)
    for position, entry in enumerate(told[1:]):
        row = expected[position]
        assert entry is not None
        assert entry.token_id == ids[position + 1]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        above, near = row > row[entry.token_id] + 1e-4, row > row[entry.token_id] - 1e-4
        assert int(above.sum()) + 1 <= entry.rank <= int(near.sum()), "but for ties of float32's rounding"
        assert [id for id, _ in entry.top] == row.topk(4).indices.tolist()


def test_a_prompt_of_one_token_has_no_logprobs(llm: LLM) -> None:
    (output,) = llm.generate([5], replace(GREEDY, prompt_logprobs=0, max_tokens=1), use_tqdm=False)
    assert output.prompt_logprobs == [None]
    assert llm.generate([5], GREEDY, use_tqdm=False)[0].prompt_logprobs is None


def test_a_top_p_of_zero_is_greedy(llm: LLM) -> None:
    for prompt in PROMPTS:
        params = replace(GREEDY, temperature=1.0, top_p=0.0, seed=3)
        assert tokens(llm, prompt, params) == tokens(llm, prompt, GREEDY)

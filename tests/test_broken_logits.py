"""A model whose numbers are none: requests say so, and never get tokens that mean nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from llmk import LLM, RequestContext, SamplingParams
from llmk.api import LlmkError
from llmk_testing.checkpoints import write_checkpoint

WORDS = r"not finite \(NaN or infinite\): its weights, or a kernel that it runs, are broken"
PARAMS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1, "seed": 1},
    "truncated": {"temperature": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "seed": 1},
    "scored": {"temperature": 0, "logprobs": 3},
    "penalized": {"temperature": 0, "presence_penalty": 1.0, "logit_bias": {3: 2.0}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


def opened(folder: Path) -> LLM:
    return LLM(str(folder), dtype="float32", **{"cache.num_blocks": 64, "cache.block_size": 4})


@pytest.fixture(scope="module")
def whole(folder: Path) -> Iterator[LLM]:
    with opened(folder) as llm:
        yield llm


def broken(folder: Path, to: Path, name: str, value: float, row: int | None = None) -> LLM:
    """The model with a weight (or a row of it) of that value."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    (tensors[name] if row is None else tensors[name][row]).fill_(value)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return opened(to)


def answer(llm: LLM, **params: Any) -> list[int]:
    (output,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4, ignore_eos=True, **params), use_tqdm=False)
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_of_broken_weights_says_so(folder: Path, tmp_path: Path, value: float) -> None:
    with broken(folder, tmp_path / "model", "model.norm.weight", value) as llm:
        for count, params in enumerate(PARAMS.values()):
            assert llm.stats.broken_logits == count
            with pytest.raises(LlmkError, match=WORDS):
                answer(llm, **params)
        with pytest.raises(LlmkError, match=WORDS):
            answer(llm, temperature=0, prompt_logprobs=1)


def test_one_token_whose_logit_is_none_is_enough(folder: Path, tmp_path: Path) -> None:
    with broken(folder, tmp_path / "model", "lm_head.weight", float("nan"), row=11) as llm:
        for params in PARAMS.values():
            with pytest.raises(LlmkError, match=WORDS):
                answer(llm, **params)


def test_only_requests_that_meet_the_broken_weight_fail(whole: LLM, folder: Path, tmp_path: Path) -> None:
    """In one batch, whatever is asked of them."""

    def run(llm: LLM) -> dict[str, tuple[list[int], str]]:
        core, prompts = llm.core, {"good": [5, 6, 7], "bad": [5, 9, 7]}
        for name, prompt in prompts.items():
            for how, params in PARAMS.items():
                (request,) = llm._input_processor.sequences(
                    prompt, SamplingParams(max_tokens=4, ignore_eos=True, **params), RequestContext(f"{name} {how}")
                )
                core.add(request)
            for returns in ("prompt_logprobs", "hidden", "last_hidden"):
                scores = 0 if returns == "prompt_logprobs" else None
                params = SamplingParams(max_tokens=1, prompt_logprobs=scores)
                (request,) = llm._input_processor.sequences(prompt, params, RequestContext(f"{name} {returns}"))
                request.returns = returns
                core.add(request)
        found: dict[str, tuple[list[int], str]] = {}
        while core.has_work:
            for output in core.step().outputs:
                name = output.id.partition("/")[0]
                found[name] = (found.get(name, ([], ""))[0] + output.token_ids, output.error)
        assert core.stats.used_blocks == 0
        return found

    expected = run(whole)
    assert not any(error for _, error in expected.values())
    with broken(folder, tmp_path / "model", "model.embed_tokens.weight", float("nan"), row=9) as llm:
        found = run(llm)
        bad = [name for name in found if name.startswith("bad")]
        assert len(bad) == 8
        for name in bad:
            assert not found[name][0], name
            assert re.search(WORDS, found[name][1]), name
        assert llm.stats.broken_logits == 8
    good = [name for name in found if name.startswith("good")]
    assert {name: found[name] for name in good} == {name: expected[name] for name in good}


def test_a_request_that_leaves_no_token_says_so(whole: LLM) -> None:
    """Where its own wishes forbid all, and nothing else is broken."""
    everything = dict.fromkeys(range(whole.info.vocab_size), float("-inf"))
    with pytest.raises(LlmkError, match="no token may be sampled: structured_outputs, allowed_token_ids"):
        answer(whole, temperature=0, logit_bias=everything)

"""Keys and values as integers with a scale per token and head, in an engine."""

from __future__ import annotations

from typing import Any

import pytest

from llmk import LLM, SamplingParams

PROMPTS = ["the quick brown fox jumps over", "a list of numbers: 1, 2, 3, 4, 5, 6, 7, 8", "and"]
GREEDY = SamplingParams(max_tokens=12, temperature=0, logprobs=0)


def served(cache_dtype: str, **options: Any) -> tuple[list[list[int]], list[float], int]:
    """Tokens, the log-probability of each prompt's first, and blocks in 8 MiB."""
    cache = {"dtype": cache_dtype, "memory_gib": 1 / 128}
    with LLM(dtype="float32", max_model_len=256, cache=cache, **options) as llm:
        found = [output.outputs[0] for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
        logprobs = [completion.logprobs[0].logprob for completion in found if completion.logprobs]
        return [completion.token_ids for completion in found], logprobs, llm.info.num_blocks


@pytest.mark.slow
def test_eight_bits_hold_more_tokens_and_change_little() -> None:
    tokens, logprobs, blocks = served("auto")
    narrow_tokens, narrow_logprobs, narrow_blocks = served("int8")
    assert narrow_tokens == tokens
    assert narrow_logprobs == pytest.approx(logprobs, abs=0.05)
    assert 3.5 < narrow_blocks / blocks < 4


@pytest.mark.slow
def test_four_bits_hold_still_more() -> None:
    _, logprobs, blocks = served("auto")
    _, narrow_logprobs, narrow_blocks = served("int4")
    assert narrow_logprobs == pytest.approx(logprobs, abs=1.0)
    assert 6 < narrow_blocks / blocks < 8

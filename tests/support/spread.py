"""What an engine must answer alike however many processes its model is spread over."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from equal_tokens import KINDS, Displacing

from llmk import LLM, SamplingParams
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk_testing.checkpoints import write_checkpoint

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
LATENT, RECURRENT, HYBRID = (KINDS[kind][1] for kind in ("latent", "recurrent", "hybrid"))
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3-tied-odd-vocabulary": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True, "vocab_size": 391}),
    "mistral-one-kv-head": ("mistral", {"num_key_value_heads": 1, "sliding_window": 24}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe-one-dense-layer": ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    "gpt-oss": ("gpt_oss", {"head_dim": 16, "num_local_experts": 6, "sliding_window": 24}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2}),
    "olmo2-biases": ("olmo2", {"attention_bias": True}),
    "phi3": ("phi3", {"tie_word_embeddings": True}),
    "deepseek-v2-biases": ("deepseek_v2", {**LATENT, "attention_bias": True, "mlp_bias": True}),
    "mamba2-biases": ("mamba2", {**RECURRENT, "use_bias": True}),
    "qwen3-next-one-kv-head": ("qwen3_next", {**HYBRID, "num_key_value_heads": 1}),
}
"""Model type and what its config has that is not as small as can be."""

_RECURRENT = ("mamba2-biases", "qwen3-next-one-kv-head")
TIGHT: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 80,
    "cache": {"block_size": 4, "state_block_size": 8, "num_blocks": 36},
    "scheduler": {"max_num_batched_tokens": 24, "max_num_seqs": 8},
}
"""Settings under which prompts are chunked, prefixes are found again, and requests give way to one another."""


def tight(family: str) -> dict[str, Any]:
    """:data:`TIGHT`, with a cache that a family with windows alone is short of too. What keeps states has room for
    those of all prefixes, but few slots: requests give way for these."""
    if family.startswith("mistral"):
        return {**TIGHT, "cache.num_blocks": 12}
    return {**TIGHT, "cache.num_blocks": 100, "scheduler.max_num_seqs": 3} if family in _RECURRENT else TIGHT


_GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
_PARAMS = [
    SamplingParams(**_GREEDY, logprobs=2),
    SamplingParams(**_GREEDY, prompt_logprobs=1),
    SamplingParams(seed=7, temperature=0.8, top_p=0.9, max_tokens=16, ignore_eos=True, logprobs=0),
    SamplingParams(seed=8, top_k=20, presence_penalty=0.6, repetition_penalty=1.3, max_tokens=16, ignore_eos=True),
    SamplingParams(**_GREEDY, frequency_penalty=0.5, bad_word_ids=((5,), (17, 4))),
    SamplingParams(seed=9, min_p=0.05, n=2, max_tokens=12, logit_bias={11: 3.0}, min_tokens=6),
]


def make(folder: Path, family: str) -> Path:
    """A tiny checkpoint of a family."""
    model_type, overrides = FAMILIES[family]
    return write_checkpoint(folder / family, model_type, **overrides)


def answers(llm: LLM, *, preempted: bool = True) -> tuple[list[Any], list[float]]:
    """What comes of a mixture of requests: tokens and ranks, and log-probabilities. With ``preempted``, some of them
    must have been."""
    core: Any = llm._core
    if llm.boot.facts.recurrent:  # of which a request needs few blocks however long it is
        core.scheduler.live.policy = GuardedPolicy(Displacing())
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 380) for _ in range(length)] for length in (1, 40, 17, 33, 5, 21)]
    first = llm.generate(prompts, _PARAMS, use_tqdm=False)
    greedy = SamplingParams(**_GREEDY)
    llm.generate([prompts[3]], greedy, use_tqdm=False)
    again = llm.generate([prompts[3][:24] + prompts[4], prompts[3]], greedy, use_tqdm=False)
    assert all(result.num_cached_tokens for result in again)
    assert core.stats.preemptions or not preempted
    tokens: list[Any] = []
    numbers: list[float] = []
    for result in (*first, *again):
        tokens += [completion.token_ids for completion in result.outputs]
        for entry in (*result.outputs[0].logprobs, *(result.prompt_logprobs or ())[1:]):
            tokens.append((entry.token_id, entry.rank, [token for token, _ in entry.top]))
            numbers += [entry.logprob, *(logprob for _, logprob in entry.top)]
    return tokens, numbers


def check(found: tuple[list[Any], list[float]], expected: tuple[list[Any], list[float]]) -> None:
    """Tokens are equal in float32; log-probabilities are close, as sums have another order."""
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-3)

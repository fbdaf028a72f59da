"""The whole engine against transformers on tiny random checkpoints: equal greedy tokens, close log-probabilities.

In fp32 and bf16, with prefix caching and chunked prefill on and off, alone and batched.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from llmk import LLM, SamplingParams
from llmk_testing.checkpoints import write_checkpoint

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 28, "kv_lora_rank": 24, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
    "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip
SIGMOID: dict[str, Any] = {
    "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
    "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
}  # fmt: skip
GROUPS = {"topk_method": "group_limited_greedy"}
SHARP = {"mscale": 0.7, "mscale_all_dim": 1.1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-bias-llama3": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "rope_parameters": LLAMA3},
    ),
    "mistral-window": ("mistral", {"sliding_window": 24, "head_dim": 32}),
    "qwen2": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-yarn-mqa": ("qwen3", {"head_dim": 16, "num_key_value_heads": 1, "rope_parameters": YARN}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24,
         "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}}},
    ),
    "granite": (
        "granite",
        {"embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 24, "num_hidden_layers": 4, "tie_word_embeddings": True}),
    "phi3": (
        "phi3",
        {"num_key_value_heads": 1,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe-one-dense-layer": ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen2-moe": ("qwen2_moe", {**EXPERTS, "head_dim": 16, "shared_expert_intermediate_size": 40}),
    "gpt-oss": ("gpt_oss", {"head_dim": 16, "num_local_experts": 6, "sliding_window": 24}),
    "deepseek-v2": ("deepseek_v2", {**LATENT, **GROUPS, "rope_parameters": YARN | SHARP}),
    "deepseek-v3": ("deepseek_v3", {**LATENT, "rope_parameters": YARN | SHARP}),
    "dots1": ("dots1", {**SIGMOID, "n_shared_experts": 2, "routed_scaling_factor": 2.5}),
    "exaone4": ("exaone4", {"sliding_window": 24, "sliding_window_pattern": 2}),
    "glm4-moe": ("glm4_moe", {**SIGMOID, "use_qk_norm": True, "attention_bias": True}),
    "granite-moe": ("granitemoe", {"num_local_experts": 6, "residual_multiplier": 0.5, "attention_multiplier": 0.2}),
    "minimax-m2-moe": (
        "minimax_m2",
        {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 3,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, "num_hidden_layers": 4}),
}  # fmt: skip
NEW_TOKENS = 24
ENGINES = {
    "plain": {"cache": {"prefix_caching": False}},
    "kernel-by-kernel": {"engine": {"graphs": False}},
    "prefix-cache": {"cache": {"prefix_caching": True, "block_size": 4}},
    "chunked": {"cache": {"prefix_caching": False}, "scheduler": {"max_num_batched_tokens": 16, "max_num_seqs": 8}},
    "chunked-prefix-cache-preempting": {
        "max_model_len": 128,
        "cache": {"prefix_caching": True, "block_size": 4, "num_blocks": 70},
        "scheduler": {"max_num_batched_tokens": 24, "max_num_seqs": 8},
    },
    "whole-prompts": {"cache": {"prefix_caching": True, "block_size": 16}, "scheduler": {"chunked_prefill": False}},
    "deterministic": {"engine": {"deterministic": True}, "scheduler": {"max_num_batched_tokens": 40}},
}
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)

Oracle = list[tuple[list[int], list[float]]]


def prompts() -> list[list[int]]:
    """Awkward lengths, one of them twice, two that share a prefix."""
    rng = random.Random(11)
    draw = [[rng.randrange(3, 380) for _ in range(n)] for n in (1, 5, 16, 33, 64)]
    return [*draw, draw[3], draw[4][:48] + draw[1]]


@cache
def oracle(folder: Path, dtype: str) -> Oracle:
    """What transformers generates for each prompt alone, with the log-probability of every token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager"
    ).eval()
    model.generation_config.eos_token_id = None  # runs on, as ``ignore_eos`` does, rather than forbidding the token
    answers = []
    for prompt in prompts():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False,
            output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        tokens = out.sequences[0, len(prompt) :].tolist()
        logprobs = torch.cat(out.logits).float().log_softmax(-1)
        answers.append((tokens, [logprobs[i, token].item() for i, token in enumerate(tokens)]))
    return answers


@pytest.fixture(scope="module", params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_type, overrides = VARIANTS[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / request.param, model_type, **overrides)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_fp32_tokens_are_equal(checkpoint: Path, engine: str) -> None:
    expected = oracle(checkpoint, "float32")
    with LLM(str(checkpoint), dtype="float32", **ENGINES[engine]) as llm:
        batched = llm.generate(prompts(), GREEDY, use_tqdm=False)
        alone = [llm.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt in prompts()]
    for results in (batched, alone):
        for result, (tokens, logprobs) in zip(results, expected, strict=True):
            completion = result.outputs[0]
            assert completion.token_ids == tokens
            assert [entry.logprob for entry in completion.logprobs] == pytest.approx(logprobs, abs=2e-3)


def many_prompts() -> list[list[int]]:
    """So many that errors of experts that nearly tie, which go astray in either implementation, don't decide."""
    rng = random.Random(5)
    return [[rng.randrange(3, 380) for _ in range(rng.randrange(2, 60))] for _ in range(400)]


@cache
def first_tokens(folder: Path, dtype: str) -> list[torch.Tensor]:
    """Log-probabilities ``[vocab]`` of the first token after each of many prompts, by transformers."""
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1) for prompt in many_prompts()]


@pytest.mark.slow
def test_bf16_is_as_close_to_fp32_as_transformers_is(checkpoint: Path) -> None:
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=0)
    with LLM(str(checkpoint), dtype="bfloat16") as llm:
        results = llm.generate(many_prompts(), one, use_tqdm=False)
    ours, theirs = [], []
    for result, exact, rounded in zip(
        results, first_tokens(checkpoint, "float32"), first_tokens(checkpoint, "bfloat16"), strict=True
    ):
        (entry,), token = result.outputs[0].logprobs, result.outputs[0].token_ids[0]
        ours.append(abs(entry.logprob - float(exact[token])))
        theirs.append(abs(float(rounded[token] - exact[token])))
    assert mean(ours) < 1.5 * mean(theirs) + 0.003
    for share in (0.5, 0.75):
        assert quantile(ours, share) < 1.3 * quantile(theirs, share) + 0.003


def quantile(values: list[float], share: float) -> float:
    """What ``share`` of the values don't exceed."""
    return sorted(values)[int(len(values) * share)]

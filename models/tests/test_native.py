"""The native families against transformers: whole, in chunks, batched, in fp32 and bf16."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from llmk.api import CheckpointError
from llmk.testing.model import ModelHarness

from .conftest import relative_error, transformers_logits

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
GEMMA = {"head_dim": 32, "sliding_window": 24, "num_key_value_heads": 1}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 28,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "rms_norm_eps": 1e-3,
}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 3.0}
SHARP = {"mscale": 0.7, "mscale_all_dim": 1.1}
SCAN = {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 24}
DELTA = {
    **EXPERTS,
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "shared_expert_intermediate_size": 40,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 4}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}),
    "mistral-window": ("mistral", {"sliding_window": 24, "head_dim": 32}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2-some-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen2-layer-types": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-bias": ("qwen3", {"head_dim": 32, "attention_bias": True}),
    "qwen3-yarn-one-kv-head": ("qwen3", {"head_dim": 16, "num_key_value_heads": 1, "rope_parameters": YARN}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-window-tied": (
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 24, "tie_word_embeddings": True},
    ),
    "qwen3-moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe-one-dense-layer": ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "attention_bias": True}),
    "qwen3-moe-every-other": (
        "qwen3_moe",
        {**EXPERTS, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 24},
    ),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    "gemma2-low-caps": (
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "attention_bias": True},
    ),
    "gemma2-no-caps": (
        "gemma2",
        {
            **GEMMA,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "deepseek-v2": ("deepseek_v2", {**LATENT, **GROUPS, "first_k_dense_replace": 1}),
    "deepseek-v2-lite": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "n_shared_experts": 1, "v_head_dim": 32}),
    "deepseek-v2-yarn": ("deepseek_v2", {**LATENT, **GROUPS, "topk_group": 3, "rope_parameters": YARN | SHARP}),
    "deepseek-v2-biases-tied": (
        "deepseek_v2",
        {**LATENT, "first_k_dense_replace": 2, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "deepseek-v2-lite-biases-dense": (
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 3, "attention_bias": True, "rope_parameters": YARN},
    ),
    "mamba2": ("mamba2", SCAN),
    "mamba2-tied-biases": (
        "mamba2",
        {**SCAN, "tie_word_embeddings": True, "use_bias": True, "use_conv_bias": False, "residual_in_fp32": False},
    ),
    "mamba2-limits": ("mamba2", {**SCAN, "n_groups": 8, "conv_kernel": 2, "time_step_limit": (0.02, 0.5)}),
    "qwen3-next": ("qwen3_next", DELTA),
    "qwen3-next-one-dense-layer": (
        "qwen3_next",
        {
            **DELTA,
            "linear_num_key_heads": 4,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
        },
    ),
}
MODELS = ("mixtral", "qwen3_moe", "gemma2", "deepseek_v2", "mamba2", "qwen3_next")
"""Model types whose plugin is of the same name; the others are dense."""

FP32_TOLERANCE = 2e-5
"""Relative: sums in another order, over three layers."""

BF16_MARGIN = {"qwen3_next": 2.0}
"""By which our error may exceed transformers', where it is not 1.25. The states of the delta rule carry errors on, so
the ratio scatters with the weights: from 0.7 to 2.8 over 14 draws, half of them below 0.92."""

PROMPT = random.Random(5).choices(range(3, 380), k=90)


@pytest.fixture(params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path]) -> Path:
    model_type, overrides = VARIANTS[request.param]
    return make_checkpoint(model_type, **overrides)


def run_in_chunks(harness: ModelHarness, sizes: list[int]) -> torch.Tensor:
    """Logits of the prompt, computed ``sizes`` tokens at a time beside another request's."""
    chunks = torch.tensor(PROMPT).split(sizes)
    other = random.Random(9).choices(range(3, 380), k=len(sizes))
    return torch.cat(
        [
            harness.step([("other", [token]), ("prompt", chunk.tolist())])[1]
            for token, chunk in zip(other, chunks, strict=True)
        ]
    )


def test_equals_transformers_in_fp32(checkpoint: Path) -> None:
    expected = transformers_logits(checkpoint, PROMPT, torch.float32)
    harness = ModelHarness.of(checkpoint, {"cache.block_size": 8})
    assert harness.boot.plan.model == f"models.{checkpoint.name if checkpoint.name in MODELS else 'dense'}"
    whole = harness.step([("whole", PROMPT)])[0]
    chunked = run_in_chunks(harness, [33, 1, 1, 7, 48])
    assert relative_error(whole, expected) < FP32_TOLERANCE
    assert relative_error(chunked, expected) < FP32_TOLERANCE


def test_is_as_exact_as_transformers_in_bf16(checkpoint: Path) -> None:
    """Both round after every operator. Against fp32 logits of the same, rounded weights, ours may not be worse."""
    rounded = _rounded_to_bf16(checkpoint)
    exact = transformers_logits(rounded, PROMPT, torch.float32)
    theirs = relative_error(transformers_logits(rounded, PROMPT, torch.bfloat16), exact)
    harness = ModelHarness.of(rounded, {"model.dtype": "bfloat16"})
    ours = relative_error(run_in_chunks(harness, [40, 1, 49]), exact)
    assert ours < BF16_MARGIN.get(checkpoint.name, 1.25) * theirs


def test_describes_the_exact_number_of_parameters(checkpoint: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    facts = ModelHarness.of(checkpoint).boot.facts
    assert facts.num_parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("variant", ["mixtral", "qwen3-moe-one-dense-layer", "qwen3-next"])
def test_experts_as_transformers_stacks_them(variant: str, make_checkpoint: Callable[..., Path]) -> None:
    """Version 5 keeps the experts of a layer in two tensors, and writes them so on request."""
    from transformers import AutoModelForCausalLM

    model_type, overrides = VARIANTS[variant]
    one_by_one = make_checkpoint(model_type, **overrides)
    stacked = one_by_one.with_name(model_type + "-stacked")
    AutoModelForCausalLM.from_pretrained(one_by_one).save_pretrained(stacked, save_original_format=False)
    with safe_open(stacked / "model.safetensors", "pt") as reader:
        assert "model.layers.0.mlp.experts.gate_up_proj" in reader.keys()  # noqa: SIM118 -- no mapping
    logits = [ModelHarness.of(folder).step([("a", PROMPT)])[0] for folder in (one_by_one, stacked)]
    assert torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("variant", ["qwen3-moe-one-dense-layer", "gemma2", "mamba2", "qwen3-next"])
def test_dummy_weights_come_from_the_seed(variant: str, make_checkpoint: Callable[..., Path]) -> None:
    model_type, overrides = VARIANTS[variant]
    settings = {"model.load_format": "dummy", "engine.seed": 1}
    folder = make_checkpoint(model_type, **overrides)
    logits = [
        ModelHarness.of(folder, settings | {"engine.seed": seed}).step([("a", PROMPT[:4])])[0] for seed in (1, 1, 2)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_a_missing_expert_is_named(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    model_type, overrides = VARIANTS["mixtral"]
    folder = shutil.copytree(make_checkpoint(model_type, **overrides), tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"lacks 1 of the tensors .*layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight"
    ):
        ModelHarness.of(folder)


def _rounded_to_bf16(checkpoint: Path) -> Path:
    from transformers import AutoModelForCausalLM

    folder = checkpoint.with_name(checkpoint.name + "-bf16")
    if not folder.exists():
        AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).save_pretrained(folder)
    return folder

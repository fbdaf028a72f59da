"""Example checkpoints for the conformance kit; together they cover both values of every boolean option of each config.
Needs transformers, which writes them and is the oracle."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llmk_models.example_settings import (
    DELTA,
    EXPERTS,
    FACTORS,
    GEMMA,
    GROUPS,
    LATENT,
    LINEAR,
    LLAMA3,
    LONGROPE,
    NO_AUXILIARY_LOSS,
    ROUTED,
    SCAN,
    SHARP,
    SIGMOID,
    SINKS,
    YARN,
)
from llmk_testing.case import Skip
from llmk_testing.model_example import ModelExample, transformers_logits


def examples(**variants: tuple[str, dict[str, Any]]) -> tuple[ModelExample, ...]:
    """By name, the transformers model type and its config overrides on top of tiny sizes."""
    return tuple(
        ModelExample.of_transformers(
            name.replace("_", "-"), model_type, bfloat16_margin=BFLOAT16_MARGIN.get(model_type, 1.25), **config
        )
        for name, (model_type, config) in variants.items()
    )


BFLOAT16_MARGIN = dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), 2.0)
"""Allowed ratio of our error to transformers', if it is not 1.25. The states of the delta rule propagate errors, so the
ratio varies with the weights: from 0.7 to 2.8 over 14 draws, half of them below 0.92."""

DENSE = examples(
    llama=("llama", {}),
    llama_tied_biases=("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    llama_llama3_rope=("llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 4}),
    llama_linear_rope=("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0}}),
    mistral_window=("mistral", {"sliding_window": 24, "head_dim": 32}),
    mistral_no_window=("mistral", {"sliding_window": None}),
    ministral=(
        "ministral",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    qwen2=("qwen2", {"num_key_value_heads": 4}),
    qwen2_some_windows=("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    qwen2_layer_types=(
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    qwen3=("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    qwen3_bias=("qwen3", {"head_dim": 32, "attention_bias": True}),
    qwen3_yarn_one_kv_head=("qwen3", {"head_dim": 16, "num_key_value_heads": 1, "rope_parameters": YARN}),
)
MIXTRAL = examples(
    mixtral=("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    mixtral_window_tied=(
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 24, "tie_word_embeddings": True},
    ),
)
QWEN3_MOE = examples(
    qwen3_moe=("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    qwen3_moe_one_dense_layer=("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "attention_bias": True}),
    qwen3_moe_every_other=(
        "qwen3_moe",
        {**EXPERTS, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 24},
    ),
)
QWEN3_MOE = tuple(replace(example, other_names={"num_experts": ("num_local_experts",)}) for example in QWEN3_MOE)
QWEN2_MOE = examples(
    qwen2_moe=("qwen2_moe", {**ROUTED, "norm_topk_prob": True}),
    qwen2_moe_one_dense_layer=(
        "qwen2_moe",
        {**ROUTED, "mlp_only_layers": [1], "qkv_bias": False, "tie_word_embeddings": True, "rope_parameters": LLAMA3},
    ),
    qwen2_moe_every_other=(
        "qwen2_moe",
        {**ROUTED, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2},
    ),
)
GPT_OSS = examples(
    gpt_oss=("gpt_oss", {**SINKS, "rope_parameters": YARN | {"truncate": False}}),
    gpt_oss_no_biases_tied=(
        "gpt_oss",
        {
            **SINKS,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "swiglu_limit": 0.5,
            "swiglu_alpha": 0.7,
            "num_experts_per_tok": 1,
            "num_key_value_heads": 4,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        },
    ),
)
GEMMA2 = examples(
    gemma2=("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    gemma2_low_caps=(
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "attention_bias": True},
    ),
    gemma2_no_caps=(
        "gemma2",
        {
            **GEMMA,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
)
GEMMA3 = examples(
    gemma3=(
        "gemma3_text",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}},
        },
    ),
    gemma3_untied_biases_capped=(
        "gemma3_text",
        {
            **GEMMA,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 3.0,
            "sliding_window_pattern": 2,
        },
    ),
)
GRANITE = examples(
    granite=("granite", FACTORS),
    granite_tied_biases=(
        "granite",
        {**FACTORS, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    ),
    granite_without_factors=("granite", {"num_key_value_heads": 1}),
)
OLMO2 = examples(
    olmo2=("olmo2", {}),
    olmo2_tied_biases=(
        "olmo2",
        {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 1, "rope_parameters": LLAMA3},
    ),
    olmo3=(
        "olmo3",
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default"}},
        },
    ),
    olmo3_tied_biases=(
        "olmo3",
        {"sliding_window": 20, "tie_word_embeddings": True, "attention_bias": True, "num_hidden_layers": 4},
    ),
)
PHI3 = examples(
    phi3=("phi3", {"sliding_window": 24, "num_key_value_heads": 4}),
    phi3_longrope=("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    phi3_tied_partly_rotated=(
        "phi3",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.75},
        },
    ),
)
DEEPSEEK_V2 = examples(
    deepseek_v2=("deepseek_v2", {**LATENT, **GROUPS, "first_k_dense_replace": 1}),
    deepseek_v2_lite=("deepseek_v2", {**LATENT, "q_lora_rank": None, "n_shared_experts": 1, "v_head_dim": 32}),
    deepseek_v2_yarn=("deepseek_v2", {**LATENT, **GROUPS, "topk_group": 3, "rope_parameters": YARN | SHARP}),
    deepseek_v2_biases_tied=(
        "deepseek_v2",
        {**LATENT, "first_k_dense_replace": 2, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    deepseek_v2_lite_biases_dense=(
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 3, "attention_bias": True, "rope_parameters": YARN},
    ),
)
DEEPSEEK_V3 = examples(
    deepseek_v3=("deepseek_v3", {**NO_AUXILIARY_LOSS, "rope_parameters": YARN | SHARP}),
    deepseek_v3_one_group=(
        "deepseek_v3",
        {**NO_AUXILIARY_LOSS, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2},
    ),
    deepseek_v3_biases_tied=(
        "deepseek_v3",
        {**NO_AUXILIARY_LOSS, "attention_bias": True, "tie_word_embeddings": True, "norm_topk_prob": False},
    ),
)


def _grouped_logits(folder: Path, token_ids: Sequence[int], dtype: torch.dtype) -> Tensor:
    """As :func:`~llmk_testing.model_example.transformers_logits`, if transformers norms each of Mamba-2's groups
    separately, as the paper's code does. Releases up to 5.17 or later norm them together."""
    from transformers import __version__
    from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

    if "group_size" not in inspect.signature(MambaRMSNormGated).parameters:
        raise Skip(
            f"transformers {__version__} norms the groups of Mamba-2 together: no oracle for more than one group"
        )
    return transformers_logits(folder, token_ids, dtype)


MAMBA2 = (
    *(
        replace(example, logits=_grouped_logits)
        for example in examples(
            mamba2=("mamba2", SCAN),
            mamba2_limits=("mamba2", {**SCAN, "n_groups": 8, "conv_kernel": 2, "time_step_limit": (0.02, 0.5)}),
        )
    ),
    *examples(
        mamba2_tied_biases_one_group=(
            "mamba2",
            {
                **SCAN,
                "n_groups": 1,
                "tie_word_embeddings": True,
                "use_bias": True,
                "use_conv_bias": False,
                "residual_in_fp32": False,
            },
        ),
    ),
)
QWEN3_NEXT = examples(
    qwen3_next=("qwen3_next", DELTA),
    qwen3_next_one_dense_layer=(
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
)
DOTS1 = examples(
    dots1=("dots1", {**SIGMOID, "n_shared_experts": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}),
    dots1_groups_biases_tied=(
        "dots1",
        {
            **SIGMOID,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "sliding_window": 24,
            "max_window_layers": 1,
        },
    ),
)
EXAONE4 = examples(
    exaone4=("exaone4", {"sliding_window": 24, "sliding_window_pattern": 2}),
    exaone4_no_windows_tied=(
        "exaone4",
        # Without layer_types, transformers divides by the length of a pattern that there is not.
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True},
    ),
)
GLM4_MOE = examples(
    glm4_moe=("glm4_moe", {**SIGMOID, "attention_bias": True, "routed_scaling_factor": 2.5}),
    glm4_moe_normed_tied=(
        "glm4_moe",
        {
            **SIGMOID,
            "use_qk_norm": True,
            "norm_topk_prob": False,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "tie_word_embeddings": True,
        },
    ),
)
GRANITEMOE = examples(
    granitemoe=("granitemoe", {**FACTORS, "num_local_experts": 6}),
    granitemoe_tied_biases=(
        "granitemoe",
        {"num_local_experts": 5, "num_experts_per_tok": 1, "tie_word_embeddings": True, "attention_bias": True},
    ),
    granitemoe_shared=(
        "granitemoeshared",
        {**FACTORS, "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 40},
    ),
)
MINIMAX_M2 = examples(
    minimax_m2=(
        "minimax_m2",
        {
            "head_dim": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
        },
    ),
    minimax_m2_tied=(
        "minimax_m2",
        {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "tie_word_embeddings": True},
    ),
)
OLMOE = examples(
    olmoe=("olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    olmoe_tied_biases=(
        "olmoe",
        {"num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "tie_word_embeddings": True},
    ),
)
SMOLLM3 = examples(
    smollm3=("smollm3", {"no_rope_layer_interval": 2}),
    smollm3_windows_biases_untied=(
        "smollm3",
        {
            "no_rope_layers": [0, 1, 1],
            "use_sliding_window": True,
            "sliding_window": 24,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
)

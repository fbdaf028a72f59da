"""Examples of families with Mamba's scans, short convolutions or the delta rule, most of them with attention too."""

from __future__ import annotations

from typing import Any

from llmk_models.example_settings import (
    CONV,
    DELTA,
    DELTA_LAYERS,
    FACTORS,
    FALCON_FACTORS,
    HYBRID_SCAN,
    MIXED,
    NEMOTRON,
    PERIODIC,
    PLAIN_EXPERTS,
    SOME_EXPERTS,
)
from llmk_models.examples import examples

_LFM3 = {"head_dim": 16, "sliding_window": 24, "num_hidden_layers": 4}

BAMBA = examples(
    bamba=("bamba", {**HYBRID_SCAN, "attn_layer_indices": [1, 3]}),
    bamba_tied_biases=(
        "bamba",
        {
            **HYBRID_SCAN,
            "attn_layer_indices": [2],
            "mamba_n_groups": 1,
            "mamba_d_head": "auto",
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
)
GRANITEMOEHYBRID = examples(
    granitemoehybrid=(
        "granitemoehybrid",
        {
            **HYBRID_SCAN,
            **FACTORS,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
            "num_local_experts": 6,
            "shared_intermediate_size": 48,
        },
    ),
    granitemoehybrid_rotated_dense_tied_biases=(
        "granitemoehybrid",
        {
            **HYBRID_SCAN,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "shared_intermediate_size": 80,
            "mamba_n_groups": 1,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
)
NEMOTRON_H = examples(
    nemotron_h=("nemotron_h", {**NEMOTRON, "layers_block_type": [*MIXED, "linear_attention"]}),
    nemotron_h_biases=(
        "nemotron_h",
        {
            **NEMOTRON,
            "layers_block_type": ["mlp", *MIXED],
            "use_bias": True,
            "use_conv_bias": False,
            "mlp_bias": True,
            "n_groups": 1,
        },
    ),
    nemotron_h_experts=("nemotron_h", {**NEMOTRON, **PLAIN_EXPERTS, "layers_block_type": ["moe", *MIXED, "moe"]}),
    nemotron_h_latent_experts=(
        "nemotron_h",
        {
            **NEMOTRON,
            **PLAIN_EXPERTS,
            "layers_block_type": [*MIXED, "moe"],
            "moe_latent_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
        },
    ),
)
FALCON_H1 = examples(
    falcon_h1=("falcon_h1", {**HYBRID_SCAN, **FALCON_FACTORS, "mamba_d_ssm": 128}),
    falcon_h1_normed_tied=(
        "falcon_h1",
        {
            **HYBRID_SCAN,
            **FALCON_FACTORS,
            "mamba_d_ssm": 128,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    falcon_h1_norm_first_biases=(
        "falcon_h1",
        {
            **HYBRID_SCAN,
            "mamba_d_ssm": None,
            "mamba_rms_norm": True,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
        },
    ),
)
QWEN3_5 = examples(
    qwen3_5=("qwen3_5_text", DELTA_LAYERS),
    qwen3_5_tied_biases=(
        "qwen3_5_text",
        {
            **DELTA_LAYERS,
            "linear_num_key_heads": 4,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
        },
    ),
    qwen3_5_moe=("qwen3_5_moe_text", DELTA),
)
_KIMI: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}
KIMI_LINEAR = examples(
    kimi_linear=("kimi_linear", {**_KIMI, "linear_num_heads": 4, "linear_head_dim": 16}),
    kimi_linear_other_sizes=(
        "kimi_linear",
        {
            **_KIMI,
            "linear_num_heads": 2,
            "linear_head_dim": 24,
            "linear_conv_kernel_dim": 3,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
            "rms_norm_eps": 1e-3,
        },
    ),
)
_LING: dict[str, Any] = {**_KIMI, "head_dim": 16, "n_group": 4, "topk_group": 2}
BAILING_HYBRID = examples(
    bailing_hybrid=("bailing_hybrid", _LING),
    bailing_hybrid_unbounded=(
        "bailing_hybrid",
        {**_LING, "head_dim": 24, "kda_safe_gate": False, "short_conv_kernel_size": 3, "norm_topk_prob": False},
    ),
)
_MINIMAX: dict[str, Any] = {"num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
MINIMAX = examples(
    minimax=("minimax", {**_MINIMAX, "layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 2]}),
    minimax_factors=(
        "minimax",
        {
            **_MINIMAX,
            "head_dim": 24,
            "linear_attn_alpha_factor": 1.4,
            "linear_attn_beta_factor": 0.7,
            "full_attn_alpha_factor": 0.9,
            "full_attn_beta_factor": 0.8,
            "mlp_alpha_factor": 1.2,
            "mlp_beta_factor": 1.1,
            "rms_norm_eps": 1e-3,
        },
    ),
)
JAMBA = examples(
    jamba=("jamba", {**PERIODIC, "num_experts": 6}),
    jamba_dense_tied_biases=(
        "jamba",
        {
            **PERIODIC,
            "num_experts": 1,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "mamba_dt_rank": 5,
            "mamba_d_conv": 3,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
        },
    ),
)
LFM3 = examples(
    lfm3=("lfm3", {**_LFM3, "layer_types": ["conv", "full_attention", "conv", "sliding_attention"]}),
    lfm3_plain_untied_biases=(
        "lfm3",
        {
            **_LFM3,
            "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
            "use_attention_gate": False,
            "use_sandwich_norm": False,
            "attention_bias": True,
            "conv_bias": True,
            "tie_word_embeddings": False,
        },
    ),
)
LFM2 = examples(
    lfm2=("lfm2", CONV),
    lfm2_untied_biases=(
        "lfm2",
        {
            "num_hidden_layers": 3,
            "full_attn_idxs": [1],
            "conv_L_cache": 4,
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    lfm2_moe=("lfm2_moe", {**CONV, **SOME_EXPERTS, "num_dense_layers": 2, "routed_scaling_factor": 1.5}),
    lfm2_moe_untied_without_biases=(
        "lfm2_moe",
        {
            **CONV,
            **SOME_EXPERTS,
            "num_dense_layers": 1,
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "conv_bias": True,
            "tie_word_embeddings": False,
        },
    ),
)
MAMBA = examples(
    mamba=("mamba", {"state_size": 12}),
    mamba_untied_biases=(
        "mamba",
        {
            "tie_word_embeddings": False,
            "use_bias": True,
            "use_conv_bias": False,
            "residual_in_fp32": False,
            "expand": 1,
            "time_step_rank": 5,
            "conv_kernel": 2,
        },
    ),
    falcon_mamba=("falcon_mamba", {"mixer_rms_eps": 1e-3, "tie_word_embeddings": False}),
    falcon_mamba_biases=("falcon_mamba", {"use_bias": True, "use_conv_bias": False, "residual_in_fp32": False}),
)

"""Tiny configurations of four kinds of models, for plans: no weights."""

from __future__ import annotations

from typing import Any

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {**COMMON, "architectures": ["Qwen3ForCausalLM"]},
    "moe": {**COMMON, **EXPERTS, "architectures": ["Qwen3MoeForCausalLM"]},
    "mla": {
        **COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "hybrid": {
        **COMMON,
        "architectures": ["Qwen3NextForCausalLM"],
        **EXPERTS,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}

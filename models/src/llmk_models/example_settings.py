"""Settings of the example checkpoints, as config.json has them."""

from __future__ import annotations

from typing import Any

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1_000_000.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.5, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 11.0, 16.0],
}
FACTORS = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}
GEMMA = {"head_dim": 32, "sliding_window": 24, "num_key_value_heads": 1}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
ROUTED = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 40,
}
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
NO_AUXILIARY_LOSS: dict[str, Any] = {**LATENT, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
SINKS = {
    "head_dim": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "intermediate_size": 48,
    "sliding_window": 24,
}
SIGMOID: dict[str, Any] = {
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}
SCAN = {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 24}
HYBRID_SCAN: dict[str, Any] = {
    "num_hidden_layers": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
}
MIXED = ["linear_attention", "mlp", "full_attention", "linear_attention"]
NEMOTRON = {
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 24,
    "time_step_min": 1e-9,  # by which transformers limits the step sizes of prompts, but not of single tokens
}
PLAIN_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
FALCON_FACTORS = {
    "embedding_multiplier": 5.5,
    "lm_head_multiplier": 0.5,
    "attention_in_multiplier": 1.5,
    "attention_out_multiplier": 0.9,
    "key_multiplier": 0.7,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "mlp_multipliers": [0.9, 0.4],
    "ssm_multipliers": [0.35, 0.25, 1.4, 0.5, 0.7],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e11},
}
CONV: dict[str, Any] = {
    "num_hidden_layers": 4,
    "block_multiple_of": 16,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
}
SOME_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
PERIODIC = {
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 12,
}
DELTA_LAYERS = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
DELTA = {**EXPERTS, **DELTA_LAYERS, "shared_expert_intermediate_size": 40}

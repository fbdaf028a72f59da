"""Example checkpoints, as in :mod:`llmk_models.examples`, of families with mechanisms that no other family has."""

from __future__ import annotations

from typing import Any

from llmk_models.example_settings import LATENT, LLAMA3, YARN
from llmk_models.examples import examples

_LLAMA4: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "num_local_experts": 6,
    "intermediate_size_mlp": 80,
    "attention_chunk_size": 16,
    "floor_scale": 8,
}
LLAMA4 = examples(
    llama4=("llama4_text", {**_LLAMA4, "interleave_moe_layer_step": 2, "rope_parameters": LLAMA3}),
    llama4_tied_biases=(
        "llama4_text",
        {
            **_LLAMA4,
            "attention_bias": True,
            "attn_temperature_tuning": False,
            "attention_chunk_size": 24,
            "layer_types": ["full_attention", "chunked_attention", "chunked_attention", "full_attention"],
            "moe_layers": [0, 1, 3],
            "no_rope_layers": [1, 0, 1, 0],
            "tie_word_embeddings": True,
            "use_qk_norm": False,
        },
    ),
)
_KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
_PER_LAYER: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 24,
    "num_hidden_layers": 4,
    "layer_types": _KINDS,
    "vocab_size_per_layer_input": 384,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
}
GEMMA4 = examples(
    gemma4=("gemma4_text", {**_PER_LAYER, "global_head_dim": 32, "use_double_wide_mlp": True}),
    gemma4_experts_untied_biases=(
        "gemma4_text",
        {
            **_PER_LAYER,
            "global_head_dim": 32,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "attention_bias": True,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": False,
        },
    ),
)
_ALTUP = {**_PER_LAYER, "laurel_rank": 8}
GEMMA3N = examples(
    gemma3n=("gemma3n_text", {**_ALTUP, "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0]}),
    gemma3n_untied_biases=(
        "gemma3n_text",
        {
            **_ALTUP,
            "intermediate_size": [112, 96, 112, 80],
            "num_kv_shared_layers": 0,
            "attention_bias": True,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
            "tie_word_embeddings": False,
        },
    ),
)
_SHARED: dict[str, Any] = {
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 3,
    "n_mamba_heads": 8,
    "mamba_ngroups": 2,
    "mamba_d_state": 24,
    "adapter_rank": 8,
    "time_step_min": 1e-9,
    # Adapters double what random projections return; norms that shrink their input keep attention from being so sharp
    # that rounding decides.
    "rms_norm_eps": 100.0,
}
ZAMBA2 = examples(
    zamba2=(
        "zamba2",
        {**_SHARED, "num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True},
    ),
    zamba2_biases=("zamba2", {**_SHARED, "add_bias_linear": True}),
)
_ZERO: dict[str, Any] = {
    **{key: value for key, value in LATENT.items() if key not in ("num_experts_per_tok", "moe_intermediate_size")},
    "head_dim": LATENT["qk_rope_head_dim"],
    "num_layers": 2,
    "num_hidden_layers": 4,
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 40,
    "moe_topk": 3,
    "zero_expert_num": 4,
}
LONGCAT_FLASH = examples(
    longcat_flash=("longcat_flash", _ZERO),
    longcat_flash_tied_biases=(
        "longcat_flash",
        {**_ZERO, "moe_topk": 9, "zero_expert_num": 2, "attention_bias": True, "tie_word_embeddings": True},
    ),
)
_ENTRIES: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 28,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 16,
    "index_head_dim": 24,
    "index_topk": 5,
    "sliding_window": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 40,
    "hc_mult": 3,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}
DEEPSEEK_V4 = examples(
    deepseek_v4=("deepseek_v4", {**_ENTRIES, "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"]}),
    deepseek_v4_windows_yarn=(
        "deepseek_v4",
        {
            **_ENTRIES,
            "layer_types": ["sliding_attention", "compressed_sparse_attention"] * 2,
            "mlp_layer_types": ["moe", "hash_moe", "moe", "hash_moe"],
            "num_experts_per_tok": 1,
            "swiglu_limit": 0.5,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
        },
    ),
)

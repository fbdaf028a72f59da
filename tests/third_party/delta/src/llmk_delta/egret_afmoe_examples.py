"""Examples for the conformance kit; together they cover both values of every boolean option of the config. Needs
transformers, which writes them and is the oracle."""

from __future__ import annotations

from typing import Any

from llmk_testing.model_example import ModelExample

_SMALL: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "head_dim": 16,
    "sliding_window": 6,
}

CHECKPOINTS = (
    ModelExample.of_transformers(
        "every-third-whole",
        "afmoe",
        **_SMALL,
        num_hidden_layers=4,
        num_key_value_heads=2,
        num_dense_layers=1,
        num_shared_experts=2,
        route_scale=2.5,
        global_attn_every_n_layers=3,
        mup_enabled=True,
    ),
    ModelExample.of_transformers(
        "tied-biases-types",
        "afmoe",
        **_SMALL,
        num_hidden_layers=3,
        num_dense_layers=2,
        num_shared_experts=1,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
    ),
)

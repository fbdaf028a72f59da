"""Examples of AFMoE for the conformance kit; together they cover both values of every boolean option of the config.
Needs transformers, which writes them and is the oracle."""

from __future__ import annotations

from dataclasses import replace

from llmk_testing.model_example import ModelExample

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
_REFUSED = (
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"score_func": "softmax"}, "score_func"),
    ({"route_norm": False}, "route_norm"),
    ({"n_group": 2}, "n_group"),
    ({"layer_types": ["sliding_attention"]}, "layer_types"),
    ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
)
_PLAIN = ModelExample.of_transformers(
    "scaled-by-width",
    "afmoe",
    **_SIZES,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_dense_layers=1,
    num_shared_experts=1,
    route_scale=2.5,
    sliding_window=7,
    global_attn_every_n_layers=3,
    mup_enabled=True,
)

CHECKPOINTS = (
    replace(_PLAIN, refused=_REFUSED),
    ModelExample.of_transformers(
        "tied-with-biases",
        "afmoe",
        **_SIZES,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        num_dense_layers=2,
        num_shared_experts=2,
        route_scale=0.7,
        sliding_window=12,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        mup_enabled=False,
        attention_bias=True,
        tie_word_embeddings=True,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    ModelExample.of_transformers(
        "stretched",
        "afmoe",
        **_SIZES,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        num_dense_layers=0,
        num_shared_experts=1,
        sliding_window=40,
        global_attn_every_n_layers=2,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
)

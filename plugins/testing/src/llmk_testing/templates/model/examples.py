"""Examples for the conformance kit; together they cover both values of every boolean option of the config. Needs
transformers, which writes them and is the oracle."""

from __future__ import annotations

from llmk_testing.model_example import ModelExample

CHECKPOINTS = (
    ModelExample.of_transformers("plain", "seed_oss", head_dim=16),
    ModelExample.of_transformers(
        "tied-other-biases",
        "seed_oss",
        head_dim=32,
        num_key_value_heads=1,
        attention_bias=False,
        attention_out_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
)

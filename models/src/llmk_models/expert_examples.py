"""Example checkpoints, as in :mod:`llmk_models.examples`, of further families with experts or latent attention."""

from __future__ import annotations

from typing import Any

from llmk_models.example_settings import LATENT, YARN
from llmk_models.examples import examples

_ERNIE = {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 40}
_ROUTED: dict[str, Any] = {"head_dim": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
_DENSE_LAST = ["sparse", "sparse", "dense"]

ERNIE4_5_MOE = examples(
    ernie4_5_moe=("ernie4_5_moe", _ERNIE),
    ernie4_5_moe_every_other=(
        "ernie4_5_moe",
        {
            **_ERNIE,
            "num_hidden_layers": 4,
            "moe_layer_start_index": 0,
            "moe_layer_interval": 2,
            "moe_num_shared_experts": 0,
            "use_bias": True,
            "tie_word_embeddings": False,
        },
    ),
)
HY_V3 = examples(
    hy_v3=("hy_v3", {**_ROUTED, "num_experts": 8}),
    hy_v3_tied_biases=(
        "hy_v3",
        {
            **_ROUTED,
            "num_experts": 6,
            "num_shared_experts": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "mlp_layer_types": _DENSE_LAST,
        },
    ),
)
SOLAR_OPEN = examples(
    solar_open=("solar_open", {**_ROUTED, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}),
    solar_open_tied_biases=(
        "solar_open",
        {
            **_ROUTED,
            "n_routed_experts": 6,
            "norm_topk_prob": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
        },
    ),
)
GLM4_MOE_LITE = examples(
    glm4_moe_lite=("glm4_moe_lite", {**LATENT, "n_shared_experts": 1}),
    glm4_moe_lite_whole_queries=(
        "glm4_moe_lite",
        {**LATENT, "q_lora_rank": None, "norm_topk_prob": False, "attention_bias": True, "tie_word_embeddings": True,
         "mlp_layer_types": _DENSE_LAST, "rope_parameters": YARN},
    ),
)  # fmt: skip
AXK1 = examples(
    axk1=("axk1", {**LATENT, "n_group": 4, "topk_group": 2}),
    axk1_biases_tied=(
        "axk1",
        {
            **LATENT,
            "n_group": 1,
            "topk_group": 1,
            "attention_bias": True,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
            "mlp_layer_types": _DENSE_LAST,
            "rope_parameters": YARN,
        },
    ),
)
_INDEXED: dict[str, Any] = {**LATENT, "index_n_heads": 16, "index_head_dim": 24, "index_topk": 20}
DEEPSEEK_V32 = examples(
    deepseek_v32=("deepseek_v32", {**_INDEXED, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}),
    deepseek_v32_biases_yarn=(
        "deepseek_v32",
        {
            **_INDEXED,
            "n_group": 1,
            "topk_group": 1,
            "attention_bias": True,
            "norm_topk_prob": False,
            "mlp_layer_types": _DENSE_LAST,
            "rope_parameters": YARN,
        },
    ),
    glm_moe_dsa_shared_indexers=(
        "glm_moe_dsa",
        {**_INDEXED, "num_hidden_layers": 4, "indexer_types": ["full", "shared"] * 2, "first_k_dense_replace": 2},
    ),
    glm_moe_dsa=("glm_moe_dsa", {**_INDEXED, "first_k_dense_replace": 1, "tie_word_embeddings": True}),
)
_YOUTU: dict[str, Any] = {
    **{key: value for key, value in LATENT.items() if "expert" not in key and "moe" not in key},
    # transformers sets the row of such a token to zeros, of tied heads too, when it loads a checkpoint.
    "pad_token_id": None,
}
YOUTU = examples(
    youtu=("youtu", _YOUTU),
    youtu_untied_biases=(
        "youtu",
        {**_YOUTU, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": False},
    ),
)
_MIMO: dict[str, Any] = {**_ROUTED, "num_key_value_heads": 1, "v_head_dim": 12, "sliding_window": 24}
MIMO_V2_FLASH = examples(
    mimo_v2_flash=("mimo_v2_flash", {**_MIMO, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}),
    mimo_v2_flash_tied_biases=(
        "mimo_v2_flash",
        {
            **_MIMO,
            "n_routed_experts": 6,
            "attention_bias": True,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
            "attention_value_scale": None,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "mlp_layer_types": _DENSE_LAST,
        },
    ),
)

"""Example checkpoints, as in :mod:`llmk_models.examples`, of dense families that differ from Llama in norms, blocks or
rotation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmk_models.example_settings import LLAMA3, YARN
from llmk_models.examples import examples

_PARTIAL = {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.25}
_HUNYUAN = {"head_dim": 16, "num_experts": 6, "moe_topk": 2}
_NO_LAYER_FULL = ["sliding_attention", "sliding_attention", "sliding_attention"]

GLM4 = examples(
    glm=("glm", {"head_dim": 16}),
    glm4=("glm4", {"head_dim": 32}),
    glm4_no_biases_tied=(
        "glm4",
        {"head_dim": 32, "attention_bias": False, "tie_word_embeddings": True, "rope_parameters": _PARTIAL},
    ),
)
COHERE = examples(
    cohere=("cohere", {"logit_scale": 0.5}),
    cohere_biases_untied=("cohere", {"attention_bias": True, "tie_word_embeddings": False, "rope_parameters": YARN}),
    cohere_norms_of_heads=("cohere", {"use_qk_norm": True, "logit_scale": 0.5}),
    cohere2=("cohere2", {"sliding_window": 24, "num_hidden_layers": 4}),
    cohere2_windows_alone=("cohere2", {"sliding_window": 20, "layer_types": _NO_LAYER_FULL, "attention_bias": True}),
)
HUNYUAN = examples(
    hunyuan=("hunyuan_v1_dense", {"head_dim": 16, "attention_bias": True}),
    hunyuan_stretched_tied=(
        "hunyuan_v1_dense",
        {
            "head_dim": 32,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0},
        },
    ),
    hunyuan_moe=("hunyuan_v1_moe", _HUNYUAN),
    hunyuan_moe_tied_biases=(
        "hunyuan_v1_moe",
        {**_HUNYUAN, "moe_topk": [3, 3, 3], "attention_bias": True, "tie_word_embeddings": True},
    ),
)
ERNIE4_5 = examples(
    ernie4_5=("ernie4_5", {"head_dim": 16}),
    ernie4_5_biases_untied=("ernie4_5", {"head_dim": 32, "use_bias": True, "tie_word_embeddings": False}),
)
HELIUM = examples(
    helium=("helium", {"head_dim": 16}),
    helium_biases_tied=(
        "helium",
        {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
)
STABLELM = examples(
    stablelm=("stablelm", {}),
    stablelm_norms_of_heads=("stablelm", {"qk_layernorm": True}),
    stablelm_side_by_side=(
        "stablelm",
        {"use_parallel_residual": True, "use_qkv_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
)
NEMOTRON = examples(
    nemotron=("nemotron", {"head_dim": 16}),
    nemotron_biases_tied=(
        "nemotron", {"head_dim": 32, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
)  # fmt: skip
ARCEE = examples(
    arcee=("arcee", {"head_dim": 16}),
    arcee_biases_tied=(
        "arcee",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN},
    ),
)
APERTUS = examples(
    apertus=("apertus", {"rope_parameters": LLAMA3}),
    apertus_biases_tied=("apertus", {"attention_bias": True, "tie_word_embeddings": True}),
)
STARCODER2 = examples(
    starcoder2=("starcoder2", {"sliding_window": 24}),
    starcoder2_no_biases_untied=("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
)
PHI = examples(
    phi=("phi", {"num_key_value_heads": 4}),
    phi_tied=("phi", {"tie_word_embeddings": True, "rope_parameters": _PARTIAL}),
)
GPT_NEOX = examples(
    gpt_neox=("gpt_neox", {"num_key_value_heads": 4}),
    gpt_neox_one_by_one=(
        "gpt_neox",
        {
            "num_key_value_heads": 4,
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_fast",
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5},
        },
    ),
)
_BLOOM = {"hidden_size": 64, "n_head": 4, "n_layer": 3, "num_key_value_heads": 4}
_MPT = {"d_model": 64, "n_heads": 4, "n_layers": 3, "num_key_value_heads": 4}


def _without_slopes(vary: Callable[..., object] | None) -> Callable[..., object]:
    """By its eager attention, transformers adds Falcon's slopes twice, so it is no oracle of these."""
    assert vary is not None

    def written(folder: Path, **config: Any) -> object:
        if config.get("alibi"):
            raise ValueError("there is no oracle of slopes")
        return vary(folder, **config)

    return written


_FALCON = examples(
    falcon=("falcon", {}),
    falcon_one_by_one_untied=(
        "falcon",
        {"parallel_attn": False, "multi_query": False, "bias": True, "tie_word_embeddings": False},
    ),
    falcon_new=("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96}),
    falcon_new_one_norm=(
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "bias": True},
    ),
)
FALCON = tuple(replace(example, vary=_without_slopes(example.vary)) for example in _FALCON)
GPTJ = examples(
    gptj=("gptj", {"rotary_dim": 8, "num_key_value_heads": 4}),
    gptj_tied_wide=(
        "gptj",
        {"rotary_dim": 16, "n_inner": 96, "tie_word_embeddings": True, "activation_function": "gelu_pytorch_tanh",
         "num_key_value_heads": 4},
    ),
)  # fmt: skip
BLOOM = examples(bloom=("bloom", _BLOOM), bloom_odd_heads=("bloom", {**_BLOOM, "hidden_size": 96, "n_head": 6}))
MPT = examples(
    mpt=("mpt", _MPT),
    mpt_clipped=("mpt", {**_MPT, "n_heads": 8, "attn_config": {"clip_qkv": 0.5}}),
)
GEMMA = examples(
    gemma=("gemma", {"head_dim": 16}),
    gemma_biases_untied=("gemma", {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": False}),
)
OLMO = examples(
    olmo=("olmo", {"clip_qkv": 0.7}),
    olmo_biases_tied=("olmo", {"attention_bias": True, "tie_word_embeddings": True}),
)
_SCALED = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}
_SCALED |= {"llama_4_scaling_beta": 0.4, "max_position_embeddings": 256, "mscale": 1.0, "mscale_all_dim": 1.0}
MINISTRAL3 = examples(
    ministral3=("ministral3", {"head_dim": 16, "rope_parameters": _SCALED}),
    ministral3_window_tied=(
        "ministral3",
        {
            "head_dim": 32,
            "sliding_window": 24,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "llama_4_scaling_beta": 0.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
)

"""Families that differ from Llama in norms, blocks or rotation: defaults, the configs of published checkpoints, and
what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import LLAMA, attends, config, experts, sparse_layers
from safetensors.torch import load_file, save_file

from llmk.api import CheckpointError
from llmk.tree import CausalLM, Linear, Norm
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import transformers_logits

FAMILIES = {
    "apertus": ("apertus", "Apertus"),
    "arcee": ("arcee", "Arcee"),
    "cohere": ("cohere", "Cohere"),
    "cohere2": ("cohere", "Cohere2"),
    "ernie4_5": ("ernie4_5", "Ernie4_5"),
    "ernie4_5_moe": ("ernie4_5_moe", "Ernie4_5_Moe"),
    "falcon": ("falcon", "Falcon"),
    "gemma": ("gemma", "Gemma"),
    "glm": ("glm4", "Glm"),
    "glm4": ("glm4", "Glm4"),
    "gpt_neox": ("gpt_neox", "GPTNeoX"),
    "helium": ("helium", "Helium"),
    "hunyuan_v1_dense": ("hunyuan", "HunYuanDenseV1"),
    "hy_v3": ("hy_v3", "HYV3"),
    "ministral": ("dense", "Ministral"),
    "ministral3": ("ministral3", "Ministral3"),
    "nemotron": ("nemotron", "Nemotron"),
    "olmo": ("olmo", "Olmo"),
    "phi": ("phi", "Phi"),
    "solar_open": ("solar_open", "SolarOpen"),
    "stablelm": ("stablelm", "StableLm"),
    "starcoder2": ("starcoder2", "Starcoder2"),
}
"""By model type: the module, and the start of the architecture's name."""
PROMPT = random.Random(9).choices(range(3, 380), k=70)
FP32_TOLERANCE = 2e-5
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")


def tree_of(model_type: str, **values: Any) -> CausalLM:
    """The tree of a tiny model of a type, whose config has ``values``, apart from those that are ``None``."""
    module, name = FAMILIES[model_type]
    own = {**LLAMA, "num_key_value_heads": 2, "architectures": [f"{name}ForCausalLM"], **values}
    made: CausalLM = import_module(f"llmk_models.{module}").tree(
        config(**{key: value for key, value in own.items() if value is not None})
    )
    return made


def rewritten(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of a checkpoint with changes of its config; ``None`` removes a key."""
    shutil.copytree(folder, to)
    values = {**json.loads((folder / "config.json").read_text()), **changes}
    (to / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return to


@pytest.mark.parametrize("model_type", FAMILIES)
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    from transformers import CONFIG_MAPPING

    heads = 320  # which the default number of key-value heads divides
    silent = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_attention_heads": heads}
    silent["hidden_size"] = heads
    theirs: Any = CONFIG_MAPPING[model_type](**silent)
    ours = tree_of(model_type, **silent, num_key_value_heads=None)
    kv = 1 if model_type == "falcon" else getattr(theirs, "num_key_value_heads", None) or heads
    assert {each.kv_heads for each in attends(ours)} == {kv}
    assert {each.head_dim for each in attends(ours)} == {getattr(theirs, "head_dim", None) or 1}
    windows = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 4
    window = getattr(theirs, "sliding_window", None)
    assert [each.window for each in attends(ours)] == [
        window if kind == "sliding_attention" else None for kind in windows
    ]
    settings = theirs.rope_parameters
    for each in attends(ours):
        if each.rope is not None:
            own = each.rope.parameters
            assert own["rope_theta"] == settings["rope_theta"]
            assert own.get("partial_rotary_factor", 1.0) == settings.get("partial_rotary_factor", 1.0)
            assert own["rope_type"] == (settings.get("type") or settings["rope_type"])
    assert ours.norm.eps == next((getattr(theirs, key) for key in EPSILONS if hasattr(theirs, key)), 1e-5)
    assert ours.head.tied == theirs.tie_word_embeddings
    assert ours.head.scale == getattr(theirs, "logit_scale", 1.0)
    sparse = getattr(theirs, "mlp_layer_types", None)
    if sparse is not None:
        assert sparse_layers(ours) == tuple(kind == "sparse" for kind in sparse)
    for own in experts(ours):
        assert own.facts.num_experts == (getattr(theirs, "num_experts", None) or theirs.num_local_experts)
        assert own.facts.top_k == theirs.num_experts_per_tok
        assert own.facts.intermediate_size == theirs.moe_intermediate_size


PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cohere": ({"rope_parameters": {"rope_type": "default", "rope_theta": 8e6}}, {"rope_theta": 8_000_000}),
    "cohere2": (
        {"sliding_window": 24, "num_hidden_layers": 4},
        {"layer_types": None, "sliding_window_pattern": 4, "rope_theta": 10000, "use_gated_activation": True},
    ),
    "falcon": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500042.0}},
        {"rope_theta": 500042.0, "multi_query": None, "activation": None},
    ),
    "glm4": (
        {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    ),
    "gpt_neox": (
        {
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 25000.0, "partial_rotary_factor": 0.5},
        },
        {"rotary_pct": 0.5, "rotary_emb_base": 25000, "num_key_value_heads": None},
    ),
    "hunyuan_v1_dense": (
        {
            "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0},
        },
        {
            "rope_theta": 10000.0,
            "use_qk_norm": True,
            "use_cla": False,
            "rope_scaling": {
                "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "type": "dynamic"
            },
        },
    ),
    "phi": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4}},
        {"partial_rotary_factor": 0.4, "rope_theta": 10000.0, "qk_layernorm": False},
    ),
    "stablelm": (
        {"use_qkv_bias": True},
        {"partial_rotary_factor": 0.25, "rope_theta": 10000, "use_parallel_residual": False, "qk_layernorm": False},
    ),
    "starcoder2": (
        {"sliding_window": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 999999.44}},
        {"rope_theta": 999999.44, "norm_type": "layer_norm", "tie_word_embeddings": None},
    ),
}  # fmt: skip
"""By model type: a config, and how the config of a published checkpoint says it."""


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_published_configs_are_read(model_type: str, make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    own, old = PUBLISHED[model_type]
    folder = make_checkpoint(model_type, **own)
    expected = transformers_logits(folder, PROMPT, torch.float32)
    again = rewritten(folder, tmp_path / "old", **{"rope_parameters": None, **old})
    assert relative_error(ModelHarness.of(again).step([("a", PROMPT)])[0], expected) < FP32_TOLERANCE


@pytest.mark.parametrize("tied", [True, False])
def test_of_ministral3_with_images_the_text_part_is_served(
    tied: bool, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """The whole says whether the head is tied; transformers writes another value in its text part."""
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
    rope |= {"llama_4_scaling_beta": 0.5}
    text = make_checkpoint("ministral3", head_dim=16, rope_parameters=rope, tie_word_embeddings=tied)
    folder = Path(shutil.copytree(text, tmp_path / "with-images"))
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(text / "model.safetensors").items()}
    save_file({**tensors, "vision_tower.conv.weight": torch.ones(2)}, folder / "model.safetensors")
    own = {**json.loads((text / "config.json").read_text()), "tie_word_embeddings": False}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": own}
    (folder / "config.json").write_text(json.dumps({**whole, "tie_word_embeddings": tied}))
    expected = transformers_logits(text, PROMPT, torch.float32)
    assert relative_error(ModelHarness.of(folder).step([("a", PROMPT)])[0], expected) < FP32_TOLERANCE


def test_mimo_has_the_keys_of_its_authors(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    routed = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    folder = make_checkpoint(
        "mimo_v2_flash",
        **{**routed, "head_dim": 16, "v_head_dim": 12, "num_key_value_heads": 1, "sliding_window": 25},
        layer_types=kinds,
    )
    expected = transformers_logits(folder, PROMPT, torch.float32)
    authors: dict[str, Any] = {
        "layer_types": None,
        "mlp_layer_types": None,
        "rope_parameters": None,
        "sliding_window": 24,
        "sliding_window_size": 24,
        "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1],
        "rope_theta": 5_000_000,
        "swa_rope_theta": 10_000,
        "swa_num_key_value_heads": 2,
        "swa_num_attention_heads": 4,
        "swa_head_dim": 16,
        "swa_v_head_dim": 12,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": None,
        "rms_norm_eps": None,
        "layernorm_epsilon": 1e-5,
    }
    again = rewritten(folder, tmp_path / "authors", **authors)
    assert relative_error(ModelHarness.of(again).step([("a", PROMPT)])[0], expected) < FP32_TOLERANCE


@pytest.mark.parametrize(
    ("model_type", "changes", "problem"),
    [
        ("phi", {"qk_layernorm": True}, "qk_layernorm = True"),
        ("falcon", {"activation": "relu"}, "activation = 'relu'"),
        ("nemotron", {"hidden_act": "silu"}, "hidden_act = 'silu'"),
        ("apertus", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("gemma", {"use_bidirectional_attention": True}, "from left to right"),
        ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "without a positive alpha"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla = True"),
        ("ernie4_5_moe", {"moe_use_aux_free": False}, "moe_use_aux_free = False"),
        ("hy_v3", {"mlp_layer_types": ["sparse"] * 3}, "mlp_layer_types of 3 layers"),
        ("cohere2", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
    ],
)
def test_what_is_not_supported_is_refused(model_type: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        tree_of(model_type, **changes)


def test_what_heads_are_packed_by() -> None:
    """Falcon: one group, a group for each head, or for each key head."""
    variants: dict[int, dict[str, Any]] = {
        1: {},
        4: {"multi_query": False},
        2: {"new_decoder_architecture": True, "num_kv_heads": 2},
    }
    for groups, own in variants.items():
        linears = [leaf for part in tree_of("falcon", **own).layers[0] for leaf in part.leaves()]
        assert {leaf.groups for leaf in linears if isinstance(leaf, Linear) and leaf.role == "qkv"} == {groups}


def test_norms_side_by_side() -> None:
    for model_type, own, norms in (
        ("falcon", {}, {"input_layernorm"}),
        ("falcon", {"new_decoder_architecture": True}, {"ln_attn", "ln_mlp"}),
        ("falcon", {"parallel_attn": False}, {"input_layernorm", "post_attention_layernorm"}),
        ("gpt_neox", {}, {"input_layernorm", "post_attention_layernorm"}),
        ("stablelm", {"use_parallel_residual": True}, {"input_layernorm"}),
    ):
        leaves = [leaf for part in tree_of(model_type, **own).layers[0] for leaf in part.leaves()]
        assert {leaf.at.rpartition(".")[2] for leaf in leaves if isinstance(leaf, Norm)} == norms

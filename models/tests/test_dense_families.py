"""Gemma 3, Granite, OLMo 2 and 3, and Phi-3: awkward configs against transformers, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from configs import LLAMA, attends, config, facts

from llmk.api import CheckpointError
from llmk.tree import CausalLM, lower, weight_map
from llmk_models import gemma3, granite, olmo2, phi3
from llmk_models.examples import LINEAR, LONGROPE, YARN
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import transformers_logits

MODULES: dict[str, ModuleType] = {
    "gemma3_text": gemma3, "granite": granite, "olmo2": olmo2, "olmo3": olmo2, "phi3": phi3,
}  # fmt: skip
NAMES = {"gemma3_text": "Gemma3", "granite": "Granite", "olmo2": "Olmo2", "olmo3": "Olmo3", "phi3": "Phi3"}
PROMPT = random.Random(7).choices(range(3, 380), k=90)
CHUNKS = (33, 1, 1, 16, 39)
FP32_TOLERANCE = 2e-5
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
BY_KIND = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
SIX_FACTORS = {key: LONGROPE[key][:6] for key in ("short_factor", "long_factor")}
ODD_HEADS = {"hidden_size": 60, "intermediate_size": 100}
AWKWARD: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3-three-heads": (
        "gemma3_text",
        {**ODD_HEADS, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 14, "sliding_window": 7,
         "layer_types": KINDS, "rope_parameters": BY_KIND, "query_pre_attn_scalar": 10},
    ),
    "gemma3-only-windows": ("gemma3_text", {"head_dim": 32, "sliding_window": 1, "tie_word_embeddings": False}),
    "gemma3-no-window": (
        "gemma3_text",
        {"head_dim": 8, "num_key_value_heads": 4, "layer_types": ["full_attention"] * 3, "attention_bias": True,
         "rope_parameters": {"full_attention": YARN}, "final_logit_softcapping": 5.0},
    ),
    "gemma3-every-other": ("gemma3_text", {"head_dim": 16, "sliding_window": 50, "sliding_window_pattern": 2}),
    "granite-five-heads": (
        "granite",
        {**ODD_HEADS, "num_attention_heads": 5, "num_key_value_heads": 5, "embedding_multiplier": 0.3, "mlp_bias": True,
         "residual_multiplier": 1.7, "logits_scaling": 13.0, "attention_multiplier": 0.05},
    ),
    "granite-linear": ("granite", {"rope_parameters": LINEAR, "residual_multiplier": 0.22, "attention_bias": True}),
    "olmo2-five-heads": ("olmo2", {**ODD_HEADS, "num_attention_heads": 5, "num_key_value_heads": 5}),
    "olmo2-head-dim": ("olmo2", {"head_dim": 24, "num_key_value_heads": 1, "attention_bias": True}),
    "olmo3-three-heads": (
        "olmo3",
        {**ODD_HEADS, "num_attention_heads": 3, "num_key_value_heads": 3, "sliding_window": 5, "layer_types": KINDS,
         "rope_parameters": BY_KIND},
    ),
    "phi3-three-heads": (
        "phi3",
        {**ODD_HEADS, "num_attention_heads": 3, "num_key_value_heads": 3, "sliding_window": 11,
         "tie_word_embeddings": True},
    ),
    "phi3-quarter-rotated": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
    "phi3-longrope-partly": (
        "phi3",
        {"original_max_position_embeddings": 128,
         "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.75, "attention_factor": 1.3, **SIX_FACTORS}},
    ),
}  # fmt: skip


def tree_of(model_type: str, **values: Any) -> CausalLM:
    """The tree of a tiny model of a type, whose config has ``values``."""
    own = {**LLAMA, "num_key_value_heads": 2, "architectures": [f"{NAMES[model_type]}ForCausalLM"], **values}
    made: CausalLM = MODULES[model_type].tree(config(**own))
    return made


def logits_of(folder: Path) -> torch.Tensor:
    """Ours, of the prompt in chunks."""
    harness, ends = ModelHarness.of(folder), list(accumulate(CHUNKS))
    chunks = [PROMPT[end - size : end] for size, end in zip(CHUNKS, ends, strict=True)]
    return torch.cat([harness.step([("a", chunk)])[0] for chunk in chunks])


def rewritten(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of a checkpoint with changes of its config; ``None`` removes a key."""
    shutil.copytree(folder, to)
    values = {**json.loads((folder / "config.json").read_text()), **changes}
    (to / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return to


@pytest.mark.parametrize("name", AWKWARD)
def test_logits_equal_those_of_transformers(name: str, make_checkpoint: Callable[..., Path]) -> None:
    model_type, changes = AWKWARD[name]
    folder = make_checkpoint(model_type, **changes)
    expected = transformers_logits(folder, PROMPT, torch.float32)
    assert relative_error(logits_of(folder), expected) < FP32_TOLERANCE


@pytest.mark.parametrize("name", AWKWARD)
def test_tensors_are_those_of_transformers(name: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, changes = AWKWARD[name]
    sizes = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_hidden_layers": 3}
    theirs = AutoConfig.for_model(model_type, **{**sizes, "num_key_value_heads": 2, "pad_token_id": 0, **changes})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(theirs)
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    if theirs.tie_word_embeddings:
        del expected["lm_head.weight"]
    stated = {key: value for key, value in theirs.to_dict().items() if key not in ("architectures", "model_type")}
    program = lower(tree_of(model_type, **stated))
    assert weight_map(program) == expected
    assert program.num_parameters == model.num_parameters()


@pytest.mark.parametrize(
    ("name", "old"),
    [
        (
            "gemma3-three-heads",
            {"layer_types": None, "sliding_window_pattern": 3, "rope_theta": 1e6, "rope_local_base_freq": 500.0,
             "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        ),
        ("gemma3-every-other", {"layer_types": None, "sliding_window_pattern": 2}),
        ("olmo3-three-heads", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 500000.0}),
        ("granite-linear", {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 1e6}),
        ("phi3-quarter-rotated", {"rope_theta": 1e4, "partial_rotary_factor": 0.25}),
        (
            "phi3-longrope-partly",
            {"rope_theta": 1e4, "partial_rotary_factor": 0.75,
             "rope_scaling": {"type": "longrope", "attention_factor": 1.3, **SIX_FACTORS}},
        ),
    ],
)  # fmt: skip
def test_configs_of_transformers_4_are_read(
    name: str, old: dict[str, Any], make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """As the published checkpoints have them."""
    model_type, changes = AWKWARD[name]
    folder = rewritten(make_checkpoint(model_type, **changes), tmp_path / "old", rope_parameters=None, **old)
    expected = transformers_logits(folder, PROMPT, torch.float32)
    assert relative_error(logits_of(folder), expected) < FP32_TOLERANCE


@pytest.mark.parametrize("model_type", NAMES)
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    from transformers import CONFIG_MAPPING

    silent = {key: value for key, value in LLAMA.items() if key not in ("architectures", "num_hidden_layers")}
    theirs: Any = CONFIG_MAPPING[model_type](**silent, num_hidden_layers=8)
    ours = MODULES[model_type].tree(
        config(**silent, num_hidden_layers=8, architectures=[f"{NAMES[model_type]}ForCausalLM"])
    )
    layers, kinds = attends(ours), getattr(theirs, "layer_types", None) or ["full_attention"] * 8
    assert {layer.kv_heads for layer in layers} == {theirs.num_key_value_heads}
    assert {layer.head_dim for layer in layers} == {getattr(theirs, "head_dim", 16)}
    for layer, kind in zip(layers, kinds, strict=True):
        assert layer.window == (theirs.sliding_window if kind == "sliding_attention" else None)
        settings = theirs.rope_parameters.get(kind) or theirs.rope_parameters
        assert {"partial_rotary_factor": 1.0, **layer.rope.parameters} == {"partial_rotary_factor": 1.0, **settings}
    assert ours.norm.eps == theirs.rms_norm_eps
    assert ours.head.tied == theirs.tie_word_embeddings
    assert ours.head.scale == 1 / getattr(theirs, "logits_scaling", 1.0)
    assert ours.head.softcap == getattr(theirs, "final_logit_softcapping", None)
    assert ours.max_model_len == theirs.max_position_embeddings
    scales = {"granite": 1.0, "gemma3_text": 256**-0.5}
    assert {layer.scale for layer in layers} == {scales.get(model_type)}


@pytest.mark.parametrize(
    ("model_type", "changes", "problem"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ("gemma3_text", {"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
        ("gemma3_text", {"layer_types": ["full_attention", "chunked_attention"] * 2}, "'chunked_attention'"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 3}, "layer_types of 3 layers"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        ("gemma3_text", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar = -1"),
        ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_theta": 0}}}, "rope_parameters"),
        ("olmo3", {"layer_types": ["linear_attention"] * 4}, "'linear_attention'"),
        ("olmo2", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("granite", {"logits_scaling": 0}, "logits_scaling = 0"),
        ("granite", {"residual_multiplier": "x"}, "residual_multiplier = 'x'"),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
        ("phi3", {"rope_scaling": {**LONGROPE, "long_factor": [1.0] * 7}}, "long_factor of 7 numbers for 8 pairs"),
        ("phi3", {"rope_scaling": {"type": "longrope", "long_factor": [1.0] * 8}}, "short_factor of 0 numbers"),
        ("phi3", {"num_key_value_heads": 3}, "num_key_value_heads = 3"),
    ],
)
def test_what_is_not_supported_is_refused(model_type: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        tree_of(model_type, **changes)


def test_longrope_is_served_to_its_original_length_by_default() -> None:
    own = {**LLAMA, "architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 128}
    found = facts(phi3, **own, rope_scaling={**LONGROPE, "type": "su"})
    assert (found.max_model_len, found.default_model_len) == (4096, 128)


def test_longrope_has_three_names() -> None:
    first, *others = (
        tree_of("phi3", rope_scaling={**LONGROPE, "rope_type": name}) for name in ("longrope", "su", "yarn")
    )
    assert others == [first, first]
    rope = attends(first)[0].rope
    assert rope.parameters["original_max_position_embeddings"] == 4096


def test_kinds_of_layers_have_their_own_sites_and_rope() -> None:
    tree = tree_of(
        "gemma3_text", num_hidden_layers=7, sliding_window=32, rope_scaling={"factor": 8.0, "type": "linear"}
    )
    full = [layer.rope.parameters["rope_type"] == "linear" for layer in attends(tree)]
    assert full == [False] * 5 + [True, False]
    assert {layer.role: layer.rope.parameters["rope_theta"] for layer in attends(tree)} == {
        "sliding_attention": 10_000.0, "attention": 1_000_000.0,
    }  # fmt: skip


def test_of_gemma3_with_images_the_text_part_is_served(make_checkpoint: Callable[..., Path]) -> None:
    text = {
        **AWKWARD["gemma3-three-heads"][1],
        "vocab_size": 384,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
    }
    sight = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "image_size": 28, "patch_size": 14}  # fmt: skip
    folder = make_checkpoint(
        "gemma3", text_config={**text, "pad_token_id": 0}, vision_config=sight, mm_tokens_per_image=4
    )
    expected = transformers_logits(folder, PROMPT, torch.float32)
    assert relative_error(logits_of(folder), expected) < FP32_TOLERANCE


def test_published_text_parts_leave_keys_out() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    scaling = {"factor": 8.0, "rope_type": "linear"}
    own = {"architectures": ["Gemma3ForConditionalGeneration"], "torch_dtype": "bfloat16"}
    found = facts(gemma3, **own, text_config={**text, "rope_scaling": scaling})
    assert (found.num_parameters, found.dtype, found.max_model_len) == (3_880_263_168, "bfloat16", 131_072)
    assert [(site.num_layers, site.sliding_window) for site in found.attention] == [(29, 1024), (5, None)]
    with pytest.raises(CheckpointError, match="no text_config"):
        facts(gemma3, **own)


def test_packed_projections_are_shared_by_heads() -> None:
    """Of a packed tensor, each rank needs some rows of every part."""
    linear = {site.site: site for site in facts(phi3, **{**LLAMA, "num_key_value_heads": 2}).linear}
    assert linear["qkv"].units == ((4, 16), (2, 16), (2, 16))
    assert linear["qkv"].modules[0] == ("model.layers.0.self_attn.qkv_proj",)
    assert linear["gate_up"].units == ((112, 1), (112, 1))

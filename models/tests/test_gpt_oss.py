"""GPT-OSS: equal to transformers for awkward configs, and what is read off its config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import LLAMA, attends, config, experts, facts
from equality import PROMPT, check_equal
from safetensors.torch import load_file, save_file

from llmk.api import CheckpointError
from llmk_models import gpt_oss
from llmk_testing.model import ModelHarness

SIZES: dict[str, Any] = {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 24, "sliding_window": 7}
SILENT = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_attention_heads": 16}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts_per_tok": 5, "num_key_value_heads": 1},
        {"head_dim": 20, "num_key_value_heads": 4, "hidden_size": 72, "swiglu_limit": 0.1},
        {"num_local_experts": 1, "num_experts_per_tok": 1, "swiglu_alpha": 0.3, "sliding_window": 1},
        {"attention_bias": False, "layer_types": ["full_attention"] * 3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ],
)
def test_equals_transformers(changes: dict[str, Any], make_checkpoint: Callable[..., Path]) -> None:
    check_equal(make_checkpoint("gpt_oss", **{**SIZES, **changes}))


@pytest.mark.parametrize("name", ["self_attn.sinks", "mlp.router.bias", "mlp.experts.gate_up_proj_bias"])
def test_every_bias_has_an_effect(name: str, make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(make_checkpoint("gpt_oss", **SIZES), tmp_path / "copy")
    (before,) = ModelHarness.of(folder).step([("a", PROMPT)])
    tensors = load_file(folder / "model.safetensors")
    tensors[f"model.layers.1.{name}"].mul_(-1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    check_equal(folder)
    (after,) = ModelHarness.of(folder).step([("a", PROMPT)])
    assert not torch.allclose(before, after, rtol=1e-2, atol=1e-2)


def test_mxfp4_is_refused_by_name(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """The format in which the published checkpoints store their experts."""
    folder = shutil.copytree(make_checkpoint("gpt_oss", **SIZES), tmp_path / "copy")
    stored = json.loads((folder / "config.json").read_text())
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps({**stored, "quantization_config": method}))
    with pytest.raises(CheckpointError, match="quantized with 'mxfp4', which no installed method claims") as caught:
        ModelHarness.of(folder)
    assert "use an unquantized checkpoint" in caught.value.hint


def test_quantization_while_loading_is_refused(make_checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.experts can't be quantized") as caught:
        ModelHarness.of(make_checkpoint("gpt_oss", **SIZES), {"model.quantization": "fp8"})
    assert "without model.quantization" in caught.value.hint


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    from transformers import GptOssConfig

    theirs: Any = GptOssConfig(**SILENT)
    ours = gpt_oss.tree(config(**SILENT))
    attend, found = attends(ours)[0], experts(ours)[0].facts
    assert attend.rope is not None
    assert attend.rope.parameters == theirs.rope_parameters
    assert (attend.kv_heads, attend.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert ours.norm.eps == theirs.rms_norm_eps
    assert ours.head.tied == theirs.tie_word_embeddings
    assert [each.window for each in attends(ours)] == [theirs.sliding_window, None] * 2
    assert (found.num_experts, found.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (found.activation_alpha, found.activation_limit) == (theirs.swiglu_alpha, theirs.swiglu_limit)
    biases = {site.site: site.bias for site in facts(gpt_oss, **SILENT).linear}
    assert theirs.attention_bias
    assert biases == {"qkv": True, "out": True, "moe.router": True, "lm_head": False}


def test_both_spellings_of_published_rope_settings_agree() -> None:
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    yarn |= {"original_max_position_embeddings": 4096}
    old = {**SILENT, "rope_scaling": yarn, "rope_theta": 150000, "max_position_embeddings": 131072}
    new = {**SILENT, "rope_parameters": yarn | {"rope_theta": 150000}, "max_position_embeddings": 131072}
    silent = {**SILENT, "max_position_embeddings": 131072}
    trees = [gpt_oss.tree(config(**each)) for each in (old, new, silent)]
    assert [tree.max_model_len for tree in trees] == [131072] * 3
    assert len({attends(tree)[0].rope for tree in trees}) == 1


def test_published_models_have_their_published_sizes() -> None:
    larger = {
        "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
        "vocab_size": 201088, "max_position_embeddings": 131072,
    }  # fmt: skip
    smaller = larger | {"num_hidden_layers": 24, "num_local_experts": 32}
    for own, size in ((larger, 116_829_156_672), (smaller, 20_914_757_184)):
        assert facts(gpt_oss, **own).num_parameters == size


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"swiglu_limit": 0}, "swiglu_limit = 0, which is not a number above 0"),
        ({"num_local_experts": 0}, "num_local_experts = 0"),
        ({"layer_types": ["full_attention"]}, "layer_types of 1 layers"),
        ({"rope_scaling": {"full_attention": {"rope_type": "yarn"}}}, "different RoPE settings"),
    ],
)
def test_an_unsupported_config_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        facts(gpt_oss, **{**SILENT, **changes})

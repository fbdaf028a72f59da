"""DeepSeek-V3: equal to transformers for awkward configs, and what is read off its config."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import LLAMA, config, experts, facts, parts_of, shared_mlps, sparse_layers
from equality import PROMPT, check_equal
from safetensors.torch import load_file, save_file

from llmk.api import CheckpointError, SelectionError
from llmk.tree import LatentAttend
from llmk_models import deepseek_v3
from llmk_models.examples import LATENT, YARN
from llmk_testing.model import ModelHarness

SIZES: dict[str, Any] = {**LATENT, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
SILENT = {key: value for key, value in LLAMA.items() if key != "architectures"} | {"num_attention_heads": 8}


@pytest.mark.parametrize(
    "changes",
    [
        {"topk_group": 1, "num_experts_per_tok": 2, "routed_scaling_factor": 0.7},
        {"n_group": 2, "topk_group": 2, "num_experts_per_tok": 8, "norm_topk_prob": False},
        {"n_routed_experts": 9, "n_group": 3, "topk_group": 2, "num_experts_per_tok": 5, "hidden_size": 72},
        {"q_lora_rank": None, "first_k_dense_replace": 0, "n_shared_experts": 3, "v_head_dim": 20},
        {"first_k_dense_replace": 3, "num_attention_heads": 3, "num_key_value_heads": 3},
        {"rope_parameters": YARN | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ],
)
def test_equals_transformers(changes: dict[str, Any], make_checkpoint: Callable[..., Path]) -> None:
    check_equal(make_checkpoint("deepseek_v3", **{**SIZES, **changes}))


def _with(folder: Path, **tensors: torch.Tensor) -> Path:
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, **tensors}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_bias_decides_which_experts_are_chosen(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(make_checkpoint("deepseek_v3", **SIZES), tmp_path / "copy")
    (before,) = ModelHarness.of(folder).step([("a", PROMPT)])
    bias = torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0, 0.0, -3.0, 3.0])
    check_equal(_with(folder, **{"model.layers.1.mlp.gate.e_score_correction_bias": bias}))
    (after,) = ModelHarness.of(folder).step([("a", PROMPT)])
    assert not torch.allclose(before, after, rtol=1e-2, atol=1e-2)


def test_the_layer_that_predicts_a_further_token_is_ignored(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(make_checkpoint("deepseek_v3", **SIZES), tmp_path / "copy")
    (before,) = ModelHarness.of(folder).step([("a", PROMPT)])
    names = ("eh_proj.weight", "enorm.weight", "mlp.experts.0.up_proj.weight", "mlp.gate.e_score_correction_bias")
    (after,) = ModelHarness.of(_with(folder, **{f"model.layers.3.{name}": torch.ones(3) for name in names})).step(
        [("a", PROMPT)]
    )
    assert torch.equal(before, after)
    _with(folder, **{"model.layers.33.eh_proj.weight": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"model\.layers\.33\.eh_proj\.weight"):
        ModelHarness.of(folder)


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    from transformers import DeepseekV3Config

    theirs: Any = DeepseekV3Config(**SILENT)
    ours = deepseek_v3.tree(config(**SILENT))
    attend, found = parts_of(ours, LatentAttend)[0], experts(ours)[0].facts
    for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"):
        assert getattr(attend.shape, name) == getattr(theirs, name)
    assert attend.rope.dim == theirs.head_dim
    assert attend.rope.parameters == theirs.rope_parameters
    assert attend.shape.bias == theirs.attention_bias
    assert (ours.norm.eps, ours.head.tied) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    assert (found.num_experts, found.top_k) == (theirs.n_routed_experts, theirs.num_experts_per_tok)
    assert (found.intermediate_size, found.renormalize) == (theirs.moe_intermediate_size, theirs.norm_topk_prob)
    assert (found.scaling, found.num_groups, found.top_groups) == (2.5, theirs.n_group, theirs.topk_group)
    assert theirs.routed_scaling_factor == found.scaling
    assert shared_mlps(ours)[0].down.size == theirs.n_shared_experts * theirs.moe_intermediate_size
    assert sparse_layers(ours) == tuple(layer >= theirs.first_k_dense_replace for layer in range(4))


def test_the_published_model_has_its_published_size() -> None:
    published = {
        "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
        "vocab_size": 129280, "max_position_embeddings": 163840, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "rope_scaling": {
            "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    }  # fmt: skip
    found = facts(deepseek_v3, **published)
    assert (found.num_parameters, found.max_model_len) == (671_026_419_200, 163840)
    (attention,) = found.attention
    assert attention.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("moe_layer_freq", 2),
        ("rope_interleave", False),
    ],
)
def test_an_unsupported_option_is_refused(key: str, value: Any) -> None:
    values = {**SILENT, "architectures": ["DeepseekV3ForCausalLM"], key: value}
    with pytest.raises(CheckpointError, match=f"DeepseekV3ForCausalLM with {key} = {value!r}") as caught:
        facts(deepseek_v3, **values)
    assert "llmk plugins" in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"), [("n_routed_experts", 0), ("n_group", 0), ("topk_group", -1), ("norm_topk_prob", "yes")]
)
def test_an_impossible_size_is_refused(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{key} = {value!r}"):
        facts(deepseek_v3, **{**SILENT, key: value})


def test_groups_that_do_not_fit_are_refused(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(make_checkpoint("deepseek_v3", **SIZES), tmp_path / "copy")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stored, "n_group": 3}))
    with pytest.raises(SelectionError, match="3 experts from 2 of 3 groups of 8 experts"):
        ModelHarness.of(folder)

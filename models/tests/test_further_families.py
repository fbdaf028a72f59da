"""A.X K1 and GPT-J: what their published configs say, and checkpoints as their authors store them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmk.api import CheckpointError
from llmk.tree import lower
from llmk_models import axk1, gptj
from llmk_models.example_settings import LATENT
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness

from .configs import config

AXK1: dict[str, Any] = {
    "architectures": ["AXK1ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 64, "num_key_value_heads": 64, "moe_intermediate_size": 2048, "n_routed_experts": 192,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 163840, "max_position_embeddings": 131072,
    "first_k_dense_replace": 1,
}  # fmt: skip
GPTJ_6B: dict[str, Any] = {
    "architectures": ["GPTJForCausalLM"], "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048,
    "rotary_dim": 64, "vocab_size": 50400, "activation_function": "gelu_new", "n_inner": None,
}  # fmt: skip
PROMPT = [*range(5, 50)]


@pytest.mark.parametrize(("family", "own", "billions"), [(axk1, AXK1, 519.0), (gptj, GPTJ_6B, 6.05)])
def test_published_configs_have_the_published_number_of_parameters(
    family: Any, own: dict[str, Any], billions: float
) -> None:
    assert lower(family.tree(config(**own))).num_parameters / 1e9 == pytest.approx(billions, rel=3e-3)


def test_the_authors_files_have_no_bias_and_more_norms(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Without a bias, experts are chosen as by one of zeros; the norms of layers without experts are not used."""
    source = make_checkpoint("axk1", **LATENT, n_group=4, topk_group=2)
    found = []
    for name in ("zeros", "theirs"):
        folder = shutil.copytree(source, tmp_path / name)
        (weights,) = folder.glob("*.safetensors")
        tensors = load_file(weights)
        biases = [key for key in tensors if key.endswith("e_score_correction_bias")]
        assert biases
        if name == "zeros":
            tensors |= {key: torch.zeros_like(tensors[key]) for key in biases}
        else:
            tensors = {key: value for key, value in tensors.items() if key not in biases}
            tensors["model.layers.0.post_mlp_layernorm.weight"] = torch.ones(64)
        save_file(tensors, weights, {"format": "pt"})
        found.append(ModelHarness.of(folder).step([("a", PROMPT)])[0])
    assert relative_error(found[1], found[0]) < 1e-6


@pytest.mark.parametrize("rotated", [0, 257])
def test_a_rotation_that_does_not_fit_is_refused(rotated: int) -> None:
    with pytest.raises(CheckpointError, match=f"rotary_dim = {rotated}, but heads of 256"):
        gptj.tree(config(**{**GPTJ_6B, "rotary_dim": rotated}))

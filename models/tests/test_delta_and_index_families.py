"""Families with Kimi delta attention, lightning attention, or attention to selected tokens: what their configs say."""

from __future__ import annotations

from typing import Any

import pytest

from llmk.api import CheckpointError, UnsupportedOption
from llmk.tree import Indexer, KimiDeltaSizes, LatentAttend, LatentAttention, Recurrent, SelectedAttend, lower
from llmk_models import bailing_hybrid, deepseek_v32, kimi_linear, minimax
from llmk_models.minimax import LightningMixer, NormedResidual

from .configs import config, parts_of

KIMI_LINEAR_48B: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"], "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2304,
    "intermediate_size": 9216, "kv_lora_rank": 512, "mla_use_nope": True, "model_max_length": 1048576,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
    },
    "moe_intermediate_size": 1024, "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "head_dim": 72,
    "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8,
    "num_hidden_layers": 27, "num_key_value_heads": 32, "num_shared_experts": 1, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-5, "routed_scaling_factor": 2.446,
    "topk_group": 1, "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip
MINIMAX_M1: dict[str, Any] = {
    "architectures": ["MiniMaxForCausalLM"], "hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 32, "vocab_size": 200064,
    "layer_types": ["full_attention" if index % 8 == 7 else "linear_attention" for index in range(80)],
    "linear_attn_alpha_factor": 3.5565588200778455, "max_position_embeddings": 1 << 20,
}  # fmt: skip
DEEPSEEK_V32: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432, "vocab_size": 129280,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "max_position_embeddings": 163840, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "own", "billions"),
    [(kimi_linear, KIMI_LINEAR_48B, 49.1), (minimax, MINIMAX_M1, 456.1), (deepseek_v32, DEEPSEEK_V32, 671.9)],
)
def test_published_configs_have_the_published_number_of_parameters(
    family: Any, own: dict[str, Any], billions: float
) -> None:
    assert lower(family.tree(config(**own))).num_parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_kimi_linear_names_its_layers_from_one() -> None:
    tree = kimi_linear.tree(config(**KIMI_LINEAR_48B))
    attends = [bool([part for part in layer[0].leaves() if isinstance(part, LatentAttend)]) for layer in tree.layers]
    assert [index + 1 for index, attending in enumerate(attends) if attending] == [4, 8, 12, 16, 20, 24, 27]
    assert all(attend.rope is None for attend in parts_of(tree, LatentAttend))
    (sizes,) = {delta.sizes for delta in parts_of(tree, Recurrent)}
    assert sizes == KimiDeltaSizes(num_heads=32, num_key_heads=32, key_dim=128, value_dim=128, conv_kernel=4)


@pytest.mark.parametrize(
    ("own", "bound"), [({}, -5.0), ({"kda_lower_bound": -3}, -3), ({"kda_safe_gate": False}, None)]
)
def test_decays_of_ling_have_a_bound(own: dict[str, Any], bound: float | None) -> None:
    values = {**KIMI_LINEAR_48B, "num_hidden_layers": 12, "rope_theta": 6e6, **own}
    tree = bailing_hybrid.tree(config(**values))
    assert {delta.sizes.facts.get("decay_bound") for delta in parts_of(tree, Recurrent)} == {bound}
    assert all(attention.gate is not None for attention in parts_of(tree, LatentAttention))
    assert len(parts_of(tree, LatentAttention)) == 2


def test_what_minimax_adds_to_has_factors_by_the_kind_of_layer() -> None:
    tree = minimax.tree(config(**MINIMAX_M1))
    (first, mlp), full = tree.layers[0], tree.layers[7][0]
    assert isinstance(first, NormedResidual)
    assert isinstance(mlp, NormedResidual)
    assert isinstance(full, NormedResidual)
    assert (first.keep, mlp.keep, full.keep) == (3.5565588200778455, 1.0, 1.0)
    decays = [mixer.decays for mixer in parts_of(tree, LightningMixer)]
    assert decays[0][0] == pytest.approx(-(2**-0.125) * (1 + 1e-5))
    assert decays[0][63] == pytest.approx(-(2**-8) * (1 + 1e-5))
    assert all(-1e-4 < rate < 0 for rate in decays[-1][60:])


def test_every_layer_of_deepseek_v32_has_an_indexer() -> None:
    tree = deepseek_v32.tree(config(**DEEPSEEK_V32))
    attends = parts_of(tree, SelectedAttend)
    assert len(attends) == 61
    assert {(attend.index.index_topk, attend.index.neighbours) for attend in attends} == {(2048, False)}
    (site,) = {attend.site("bfloat16") for attend in attends}
    assert [(tensor.name, tensor.shape) for tensor in site.tensors] == [("latent", (576,)), ("index", (128,))]


def test_some_layers_of_glm_take_the_tokens_of_others() -> None:
    values = {**DEEPSEEK_V32, "architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": 8}
    tree = deepseek_v32.tree(config(**{**values, "index_topk_freq": 3}))
    picks = [attend.picks for attend in parts_of(tree, SelectedAttend)]
    assert picks == [True, True, False, False, True, False, False, True]
    for own in ({"indexer_types": ["full", "shared"] * 4}, {"index_topk_pattern": "FSFSFSFS"}):
        tree = deepseek_v32.tree(config(**{**values, **own}))
        attends = parts_of(tree, SelectedAttend)
        assert [attend.picks for attend in attends] == [True, False] * 4
        assert [len(attend.site("bfloat16").tensors) for attend in attends] == [2, 1] * 4
        assert len(parts_of(tree, Indexer)) == 4


@pytest.mark.parametrize(
    ("family", "own", "problem"),
    [
        (kimi_linear, {**KIMI_LINEAR_48B, "linear_attn_config": 3}, "linear_attn_config = 3"),
        (kimi_linear, {**KIMI_LINEAR_48B, "mla_use_nope": False}, "mla_use_nope = False"),
        (deepseek_v32, {**DEEPSEEK_V32, "indexer_types": ["full", "shared"]}, "indexer_types of 2 layers"),
        (deepseek_v32, {**DEEPSEEK_V32, "indexer_types": ["shared"] * 61}, "the first full"),
        (deepseek_v32, {**DEEPSEEK_V32, "q_lora_rank": None}, "q_lora_rank = null"),
    ],
)
def test_what_is_not_served_is_refused(family: Any, own: dict[str, Any], problem: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedOption), match=problem):
        family.tree(config(**own))

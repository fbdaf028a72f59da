"""Families with Mamba's scans, short convolutions or the delta rule: what their configs say."""

from __future__ import annotations

from typing import Any

import pytest

from llmk.api import CheckpointError
from llmk.tree import ConvMixer, Recurrent, SelectiveScanSizes, StateSpaceSizes
from llmk_models import bamba, falcon_h1, granitemoehybrid, jamba, lfm2, lfm3, mamba, nemotron_h, qwen3_5

from .configs import LLAMA, attends, config, experts, facts, parts_of

LLAMA = {**LLAMA, "num_key_value_heads": 4}
PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
NEMOTRON_H_8B: dict[str, Any] = {
    "hidden_size": 4096, "vocab_size": 131072, "intermediate_size": 21504, "num_hidden_layers": 52,
    "hybrid_override_pattern": PATTERN, "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
    "max_position_embeddings": 8192, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "mlp_hidden_act": "relu2", "time_step_limit": [0.0, float("inf")],
}  # fmt: skip
NEMOTRON_3_NANO: dict[str, Any] = {
    "hidden_size": 2688, "vocab_size": 131072, "intermediate_size": 1856, "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "mlp_hidden_act": "relu2", "n_routed_experts": 128, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5, "max_position_embeddings": 262144,
}  # fmt: skip
GRANITE_4_TINY: dict[str, Any] = {
    "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 40, "num_attention_heads": 12,
    "num_key_value_heads": 4, "vocab_size": 100352, "max_position_embeddings": 131072, "mamba_n_heads": 48,
    "mamba_d_head": 64, "mamba_d_state": 128, "num_local_experts": 64, "num_experts_per_tok": 6,
    "shared_intermediate_size": 1024, "position_embedding_type": "nope", "tie_word_embeddings": True,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
}  # fmt: skip
FALCON_H1_7B: dict[str, Any] = {
    "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 44, "num_attention_heads": 12,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 130048, "rope_theta": 1e11, "mamba_d_ssm": 3072,
    "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_d_state": 256, "max_position_embeddings": 262144,
}  # fmt: skip
BAMBA_9B: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 128256, "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64, "mamba_d_state": 128,
    "mamba_d_head": "auto", "max_position_embeddings": 4096,
}  # fmt: skip
FALCON_MAMBA_7B: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 8192, "expand": 16, "num_hidden_layers": 64, "vocab_size": 65024,
    "tie_word_embeddings": False, "time_step_rank": 256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "architecture", "own", "billions"),
    [
        (nemotron_h, "NemotronHForCausalLM", NEMOTRON_H_8B, 8.1),
        (nemotron_h, "NemotronHForCausalLM", NEMOTRON_3_NANO, 31.58),
        (granitemoehybrid, "GraniteMoeHybridForCausalLM", GRANITE_4_TINY, 6.94),
        (falcon_h1, "FalconH1ForCausalLM", FALCON_H1_7B, 7.59),
        (bamba, "BambaForCausalLM", BAMBA_9B, 9.78),
        (mamba, "FalconMambaForCausalLM", FALCON_MAMBA_7B, 7.27),
    ],
)
def test_published_hybrids_have_their_published_sizes(
    family: Any, architecture: str, own: dict[str, Any], billions: float
) -> None:
    found = facts(family, architectures=[architecture], **own)
    assert found.num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_nemotron_h_names_kinds_of_layers_in_three_ways() -> None:
    own = {**LLAMA, "num_hidden_layers": 4, "intermediate_size": [8, 16]}
    named = (
        {"hybrid_override_pattern": "M-*-"},
        {"layers_block_type": ["mamba", "mlp", "attention", "mlp"]},
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
    )
    first, *others = (nemotron_h.tree(config(**{**own, **kinds})) for kinds in named)
    assert all(other == first for other in others)
    assert [first.layers[layer][0].block.down.size for layer in (1, 3)] == [8, 16]


def test_lfm3_has_attention_in_every_other_layer_and_rope_of_two_kinds_unless_its_config_says_otherwise() -> None:
    own = {**LLAMA, "num_hidden_layers": 5, "head_dim": 16}
    (conv, *_), _, (full, *_), _, (sliding, *_) = lfm3.tree(config(**own)).layers
    assert isinstance(conv.block, ConvMixer)
    full, sliding = full.block.attend, sliding.block.attend
    assert (full.window, sliding.window) == (None, 256)
    assert [attend.rope.parameters["rope_type"] for attend in (full, sliding)] == ["proportional", "default"]
    assert [attend.rope.rotary_dim for attend in (full, sliding)] == [16, 16]


def test_mambas_width_may_be_stated() -> None:
    for own, wanted in (({"intermediate_size": 80}, 80), ({"expand": 1.5}, 96), ({}, 128)):
        tree = mamba.tree(config(architectures=["MambaForCausalLM"], hidden_size=64, num_hidden_layers=1, **own))
        (scan,) = parts_of(tree, Recurrent)
        assert isinstance(scan.sizes, SelectiveScanSizes)
        assert scan.sizes.channels == wanted


def test_jambas_experts_and_attention_are_periodic() -> None:
    tree = jamba.tree(config(**{**LLAMA, "num_hidden_layers": 16}))
    assert [bool(parts_of_layer) for parts_of_layer in map(_attends, tree.layers)] == [i % 8 == 4 for i in range(16)]
    assert len(experts(tree)) == 8
    assert all(each.rope is None for each in attends(tree))


def _attends(layer: Any) -> list[Any]:
    return [part for part in layer if hasattr(part.block, "attend")]


def test_falcon_h1_folds_factors_into_what_is_computed_anyway() -> None:
    own = {**LLAMA, "mamba_d_ssm": 64, "mamba_n_heads": 4, "attention_in_multiplier": 2.0, "key_multiplier": 0.5}
    tree = falcon_h1.tree(
        config(**own, attention_out_multiplier=3.0, mlp_multipliers=[0.5, 4.0], ssm_in_multiplier=2.0)
    )
    (attend, *_) = attends(tree)
    assert attend.scale == pytest.approx(16**-0.5 * 0.5 * 4.0)
    mixer, mlp = tree.layers[0]
    assert (mixer.block.attention_factor, mlp.scale, mlp.block.activation_alpha) == (6.0, 2.0, 0.5)
    assert mixer.block.scan.factors == (2.0,) * 5


SCAN = {**LLAMA, "mamba_n_heads": 8, "mamba_d_head": 16}


@pytest.mark.parametrize(
    ("family", "own", "problem"),
    [
        (bamba, {**SCAN, "mamba_d_head": 24}, "mamba_n_heads \\* mamba_d_head = 192, but 128 channels"),
        (bamba, {**SCAN, "mamba_n_groups": 3}, "mamba_n_groups = 3 does not divide"),
        (bamba, {**SCAN, "attn_rotary_emb": 16}, "attn_rotary_emb = 16, not the half of a head: 8"),
        (granitemoehybrid, {**SCAN, "layer_types": ["mamba"] * 3}, "layer_types of 3 layers"),
        (granitemoehybrid, {**SCAN, "layer_types": ["mamba"] * 3 + ["x"]}, "of kinds mamba, x"),
        (granitemoehybrid, {**SCAN, "position_embedding_type": "alibi"}, "position_embedding_type = 'alibi'"),
        (falcon_h1, {**SCAN, "mamba_d_ssm": 128, "mlp_multipliers": [1.0]}, "mlp_multipliers of 1 numbers, not 2"),
        (
            falcon_h1,
            {**SCAN, "mamba_d_ssm": 128, "attention_bias": True, "attention_in_multiplier": 2.0},
            "attention_bias and attention_in_multiplier = 2.0",
        ),
        (nemotron_h, {**LLAMA, "hybrid_override_pattern": "MXM*"}, "layers of kind 'X'"),
        (
            nemotron_h,
            {**LLAMA, "hybrid_override_pattern": "MEM*", "moe_latent_size": 8, "mlp_bias": True},
            "mlp_bias = True",
        ),
        (
            nemotron_h,
            {**LLAMA, "hybrid_override_pattern": "M-M"},
            "num_hidden_layers = 4, but hybrid_override_pattern of 3 layers",
        ),
        (nemotron_h, {**LLAMA, "hybrid_override_pattern": "M-M-", "intermediate_size": [3] * 3}, "of 3 MLPs, but 2"),
        (nemotron_h, {**LLAMA, "hybrid_override_pattern": "M-M-", "mlp_hidden_act": "silu"}, "mlp_hidden_act = 'silu'"),
        (lfm2, {**LLAMA, "layer_types": ["conv", "x", "conv", "conv"]}, "layer_types of 4 layers: conv, x"),
        (lfm3, {**LLAMA, "layer_types": ["conv", "x", "conv", "conv"]}, "layer_types of 4 layers: conv, x"),
        (qwen3_5, {**LLAMA, "text_config": 3}, "text_config that is no object"),
        (qwen3_5, {**LLAMA, "layer_types": ["full_attention"]}, "layer_types of 1 layers"),
    ],
)
def test_configs_that_contradict_themselves_are_refused(family: Any, own: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        family.tree(config(**own))


@pytest.mark.slow
def test_scans_have_the_defaults_of_transformers() -> None:
    from transformers import BambaConfig, FalconH1Config, GraniteMoeHybridConfig

    for family, theirs, own in (
        (bamba, BambaConfig(), {}),
        (granitemoehybrid, GraniteMoeHybridConfig(), {}),
        (falcon_h1, FalconH1Config(mamba_n_heads=64), {"mamba_n_heads": 64}),
    ):
        tree = family.tree(config(**{**LLAMA, "hidden_size": 4096, "num_attention_heads": 32, **own}))
        (scan, *_) = parts_of(tree, Recurrent)
        assert isinstance(scan.sizes, StateSpaceSizes)
        assert scan.sizes.num_heads == theirs.mamba_n_heads
        assert scan.sizes.head_dim == theirs.mamba_d_head
        assert scan.sizes.num_groups == theirs.mamba_n_groups
        assert scan.sizes.state_size == theirs.mamba_d_state
        assert scan.sizes.conv_bias == theirs.mamba_conv_bias

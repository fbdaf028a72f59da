"""Ling 3: Kimi delta attention with bounded decays in most layers, latent attention with a gate per head in the others,
and experts that are chosen by sigmoid scores with a bias."""

from __future__ import annotations

from typing import Any

from llmk.tree import Block, CausalLM, Config, KimiDeltaSizes, LatentAttention, Residual, Rope
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, latent_shape
from llmk_models.kimi_delta import KimiDeltaMixer, renamed
from llmk_models.parts import Family, Names, Parts
from llmk_models.sigmoid_experts import sigmoid_experts
from llmk_models.state_space import attending_layers

FAMILY = Family(rope_theta=6_000_000.0)
"""These and the following numbers are the defaults of transformers' config class."""
_EXPERTS: dict[str, Any] = {"num_experts": 512, "top_k": 8, "dense": 2, "shared": 1, "inner_size": 768}


def tree(config: Config) -> CausalLM:
    """The tree of a Ling 3 checkpoint. The layers that predict further tokens (MTP), which are stored after the others,
    are not used."""
    config = renamed(config, q_lora_rank=None, max_position_embeddings=262144)
    parts, latent = Parts(config, FAMILY), latent_shape(config)
    parts.names = Names(embed="word_embeddings")
    rope = parts.rope = Rope.of(config, latent.qk_rope_head_dim, theta=FAMILY.rope_theta)
    heads = config.size("linear_num_heads", latent.num_heads)
    head_dim = config.size("linear_head_dim", config.size("head_dim", 128))
    sizes = KimiDeltaSizes(
        num_heads=heads,
        num_key_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        conv_kernel=config.size("short_conv_kernel_size", 4),
        decay_bound=config.number("kda_lower_bound", -5.0) if config.flag("kda_safe_gate", True) else None,
    )
    every = config.size("layer_group_size", 6)
    default = tuple((index + 1) % every == 0 for index in range(parts.num_layers))
    attends = attending_layers(config, parts.num_layers, default)
    bias: dict[str, Any] = {"selection_bias": "gate.expert_bias"}
    feed_forward = sigmoid_experts(parts, **_EXPERTS, scaling=2.5, groups=(8, 4), **bias)

    def mixer(index: int, at: str) -> Block:
        if attends[index]:
            return LatentAttention.of(at, latent, rope, LATENT_NORM_EPS, out="dense").gated_by(f"{at}.g_proj")
        gates: dict[str, Any] = {"decays": ("f_proj",), "gates": ("g_proj",), "out_aliases": ("dense",)}
        return KimiDeltaMixer.of(at, parts.hidden_size, sizes, parts.eps, **gates)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, f"{at}.attention"), feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer, ignored=parts.names_ahead)

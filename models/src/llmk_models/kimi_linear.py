"""Kimi-Linear: Kimi delta attention in most layers, latent attention without rotation in the others, and experts that
are chosen by sigmoid scores with a bias (arXiv:2510.26692)."""

from __future__ import annotations

from typing import Any

from llmk.tree import Block, CausalLM, Config, KimiDeltaSizes, LatentAttention, Residual
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, latent_shape
from llmk_models.kimi_delta import KimiDeltaMixer, renamed
from llmk_models.parts import Family, Parts, with_values
from llmk_models.sigmoid_experts import sigmoid_experts
from llmk_models.state_space import attending_layers

FAMILY = Family(norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""
_NESTED = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
    "full_attn_layers": "full_attn_layers",
}
"""Keys of ``linear_attn_config``, as published configs have it, and what transformers calls them."""
_EXPERTS: dict[str, Any] = {"num_experts": 256, "top_k": 8, "dense": 1, "shared": 1, "inner_size": 1024}


def tree(config: Config) -> CausalLM:
    """The tree of a Kimi-Linear checkpoint."""
    config.choice("moe_router_activation_func", "sigmoid")
    config.choice("mla_use_nope", True)
    config = renamed(_flat(config), q_lora_rank=None, max_position_embeddings=1 << 20)
    parts, latent = Parts(config, FAMILY), latent_shape(config)
    heads, head_dim = config.size("linear_num_heads", 32), config.size("linear_head_dim", 128)
    sizes = KimiDeltaSizes(
        num_heads=heads,
        num_key_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        conv_kernel=config.size("linear_conv_kernel_dim", 4),
    )
    full = config.counts("full_attn_layers") or range(5, parts.num_layers + 1, 4)
    attends = attending_layers(config, parts.num_layers, tuple(i + 1 in full for i in range(parts.num_layers)))
    names: dict[str, Any] = {"names": ("w1", "w3", "w2"), "block_name": "block_sparse_moe"}
    feed_forward = sigmoid_experts(parts, **_EXPERTS, scaling=2.446, **names)
    gates: dict[str, Any] = {"decays": ("f_a_proj", "f_b_proj"), "gates": ("g_a_proj", "g_b_proj"), "rank": head_dim}

    def mixer(index: int, at: str) -> Block:
        if attends[index]:
            return LatentAttention.of(at, latent, None, LATENT_NORM_EPS)
        return KimiDeltaMixer.of(at, parts.hidden_size, sizes, parts.eps, **gates)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, f"{at}.self_attn"), feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer)


def _flat(config: Config) -> Config:
    """A config with the keys of ``linear_attn_config`` among all others. Raises CheckpointError."""
    nested = config.values.get("linear_attn_config") or {}
    if not isinstance(nested, dict):
        raise config.refuse(f"linear_attn_config = {nested!r}, which is not an object")
    return with_values(config, **{key: nested[own] for own, key in _NESTED.items() if own in nested})

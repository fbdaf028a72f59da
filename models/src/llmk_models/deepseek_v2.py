"""DeepSeek-V2: latent attention, and experts in groups (arXiv:2405.04434)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, LatentAttention, LatentShape, MoE, Residual, Rope
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias", "mlp_bias"))
"""These and the following numbers are the defaults of transformers' config class."""

LATENT_NORM_EPS = 1e-6
"""Epsilon of the norms of latent vectors; the config's value is for the others."""
_SERVED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "scoring_func": ("softmax",),
    "topk_method": ("greedy", "group_limited_greedy"),
    "norm_topk_prob": (False,),
}
"""Values of the config's options that this implementation supports, the default first."""
UNSERVED_HINT = (
    "compare config.json with what the model's authors publish; if it is right, install a wheel that implements it"
    " (`llmk plugins` lists what is installed)"
)


def tree(config: Config) -> CausalLM:
    """The tree of a DeepSeek-V2 checkpoint. Every ``moe_layer_freq``-th layer has experts, except the first
    ``first_k_dense_replace`` layers."""
    for key, served in _SERVED.items():
        config.choice(key, *served, hint=UNSERVED_HINT)
    parts = Parts(config, FAMILY)
    latent, experts = latent_shape(config), _experts(config)
    rope = parts.rope = Rope.of(config, latent.qk_rope_head_dim)
    first, step = config.count("first_k_dense_replace", 0), config.size("moe_layer_freq", 1)
    shared_size = experts.intermediate_size * (config.nullable(config.count, "n_shared_experts", 2) or 0)

    def feed_forward(index: int, at: str) -> Block:
        if not (experts.num_experts and index >= first and index % step == 0):
            return parts.mlp(at)
        shared = {"prefix": "shared_", "partial": True}
        mlp = parts.mlp(f"{at}.shared_experts", shared_size, **shared) if shared_size else None
        return MoE.of(at, experts, shared=mlp)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = LatentAttention.of(f"{at}.self_attn", latent, rope, LATENT_NORM_EPS)
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer)


def _experts(config: Config) -> MoEFacts:
    grouped = config.choice("topk_method", *_SERVED["topk_method"]) == "group_limited_greedy"
    return MoEFacts(
        site="moe",
        num_experts=config.nullable(lambda *of: config.count(*of, most=MOST_EXPERTS), "n_routed_experts", 64) or 0,
        top_k=config.size("num_experts_per_tok"),
        hidden_size=config.size("hidden_size"),
        intermediate_size=config.size("moe_intermediate_size", 1407),
        renormalize=False,
        scaling=config.number("routed_scaling_factor", 1.0),
        num_groups=config.size("n_group") if grouped else 1,
        top_groups=config.size("topk_group") if grouped else 1,
    )


def latent_shape(config: Config) -> LatentShape:
    """The sizes of latent attention. Raises CheckpointError."""
    plain, rotated = config.size("qk_nope_head_dim", 128), config.size("qk_rope_head_dim", 64)
    return LatentShape(
        hidden_size=config.size("hidden_size"),
        num_heads=config.size("num_attention_heads"),
        q_lora_rank=config.nullable(config.size, "q_lora_rank", 1536),
        kv_lora_rank=config.size("kv_lora_rank", 512),
        qk_nope_head_dim=plain,
        qk_rope_head_dim=rotated,
        v_head_dim=config.size("v_head_dim", 128),
        scale=(plain + rotated) ** -0.5 * _attention_scaling(Rope.of(config, rotated).parameters) ** 2,
        bias=config.flag("attention_bias", False),
    )


def _attention_scaling(rope: Mapping[str, Any]) -> float:
    """YaRN's (arXiv:2309.00071) attention scaling of queries and keys for an extended context, with the weight
    ``mscale_all_dim``."""
    weight, factor = rope.get("mscale_all_dim"), rope.get("factor", 1.0)
    if rope["rope_type"] == "default" or not weight or factor <= 1:
        return 1.0
    return float(0.1 * weight * log(factor) + 1.0)

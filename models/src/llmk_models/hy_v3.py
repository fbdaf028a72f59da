"""Hunyuan 3 (HY): norms of queries and keys, and experts that are chosen by sigmoid scores with a bias."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts, with_values
from llmk_models.sigmoid_experts import sigmoid_experts

FAMILY = Family(
    bias_flags=("attention_bias", "mlp_bias"), qk_norm=True, head_dim=128, num_kv_heads=8, norm_eps=1e-5,
    rope_theta=11_158_840.0,
)  # fmt: skip
"""These and the following numbers are the defaults of transformers' config class."""
_NAMES: dict[str, Any] = {"router": "router.gate", "selection_bias": "expert_bias", "shared_name": "shared_mlp"}


def tree(config: Config) -> CausalLM:
    """The tree of a Hunyuan 3 checkpoint. The layers that predict further tokens (MTP), which are stored after the
    others, are not used."""
    usual = {
        "n_routed_experts": config.size("num_experts", 192),
        "n_shared_experts": config.count("num_shared_experts", 1),
        "routed_scaling_factor": config.number("router_scaling_factor", 2.826),
        "norm_topk_prob": True,
    }
    parts = Parts(with_values(config, **usual), FAMILY)
    sizes: dict[str, Any] = {"num_experts": 192, "top_k": 8, "dense": 1, "shared": 1, "inner_size": 1536}
    feed_forward = sigmoid_experts(parts, **sizes, **_NAMES)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer, ignored=parts.names_ahead)

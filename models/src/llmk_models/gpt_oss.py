"""GPT-OSS: attention sinks, windows in every other layer, experts with biases and a clamped SwiGLU
(arXiv:2508.10925)."""

from __future__ import annotations

from typing import Any

from llmk.api import MoEFacts
from llmk.tree import CausalLM, Config, MoE, Residual, Rope
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts

FAMILY = Family(windows="alternating", window=128, head_dim=64, num_kv_heads=8, norm_eps=1e-5, rope_theta=150000.0)
"""These and the following numbers are the defaults of transformers' config class."""

_ROPE: dict[str, Any] = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
_ROPE |= {"original_max_position_embeddings": 4096}
"""The rotary settings of a config without any."""


def tree(config: Config) -> CausalLM:
    """The tree of a GPT-OSS checkpoint whose experts are stored unquantized."""
    parts = Parts(config, FAMILY)
    if not (config.rope("rope_parameters") or config.rope("rope_scaling")):
        theta = config.positive("rope_theta", FAMILY.rope_theta)
        parts.rope = Rope.with_settings(parts.heads.dim, parts.rope.positions, _ROPE | {"rope_theta": theta})
    parts.qkv_bias = parts.out_bias = config.flag("attention_bias", True)
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("num_local_experts", 128, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 4),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
        bias=True,
        router_bias=True,
        activation_alpha=config.positive("swiglu_alpha", 1.702),
        activation_limit=config.positive("swiglu_limit", 7.0),
        up_offset=1.0,
    )

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", parts.windows[index], sinks=True)
        return parts.pre_normed(at, attention, MoE.of(f"{at}.mlp", experts, router="router", interleaved=True))

    return parts.decoder(layer)

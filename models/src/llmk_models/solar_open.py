"""Solar Open: experts in every layer, which are chosen by sigmoid scores with a bias, and a shared one."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts, with_values
from llmk_models.sigmoid_experts import sigmoid_experts

FAMILY = Family(num_kv_heads=8, head_dim=128, norm_eps=1e-5, rope_theta=1_000_000.0)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Solar Open checkpoint."""
    inner_size = config.size("moe_intermediate_size", 1280)
    parts = Parts(with_values(config, intermediate_size=inner_size, first_k_dense_replace=0), FAMILY)
    parts.qkv_bias = config.flag("attention_bias", False)
    feed_forward = sigmoid_experts(parts, num_experts=128, top_k=8, dense=0, shared=1, inner_size=inner_size)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer)

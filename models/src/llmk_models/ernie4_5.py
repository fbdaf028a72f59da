"""Ernie 4.5: Llama that rotates pairs of neighbours, and may have biases everywhere."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(num_kv_heads=2, head_dim=128, norm_eps=1e-5, rope_theta=500000.0, tied=True, neighbours=True)
"""These numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a dense Ernie 4.5 checkpoint."""
    parts = Parts(config, FAMILY)
    parts.qkv_bias = parts.out_bias = parts.mlp_bias = config.flag("use_bias", False)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)

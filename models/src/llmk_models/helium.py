"""Helium: Llama that rotates pairs of neighbours."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(
    bias_flags=("mlp_bias",), num_kv_heads=20, head_dim=128, norm_eps=1e-8, rope_theta=100000.0, neighbours=True
)
"""These numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Helium checkpoint."""
    parts = Parts(config, FAMILY)
    parts.qkv_bias = config.flag("attention_bias", False)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)

"""Youtu-LLM: a dense decoder with latent attention."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, LatentAttention, Residual, Rope
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, latent_shape
from llmk_models.parts import Family, Parts

FAMILY = Family(tied=True)
"""These numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Youtu-LLM checkpoint."""
    config.choice("rope_interleave", True)
    parts, latent = Parts(config, FAMILY), latent_shape(config)
    parts.rope = rope = Rope.of(config, latent.qk_rope_head_dim)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = LatentAttention.of(f"{at}.self_attn", latent, rope, LATENT_NORM_EPS)
        return parts.pre_normed(at, attention, parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)

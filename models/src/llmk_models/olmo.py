"""OLMo (arXiv:2402.00838): LayerNorm without weights, and clamped queries, keys and values."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias",), centered=True, norm_eps=1e-5, eps_key="layer_norm_eps")
"""The epsilon is that of transformers' modules; its config class has none."""


def tree(config: Config) -> CausalLM:
    """The tree of an OLMo checkpoint."""
    parts, clip = Parts(config, FAMILY), config.positive("clip_qkv", None)
    parts.norm_options["weighted"] = False

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn", clip=clip), parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)

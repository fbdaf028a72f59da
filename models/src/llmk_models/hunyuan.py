"""Hunyuan: queries and keys are normed after their rotation, whose base may be stretched by a fixed factor."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual, Rope
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config classes."""


def tree(config: Config) -> CausalLM:
    """The tree of a dense Hunyuan checkpoint."""
    parts = Parts(config, FAMILY)
    parts.rope = stretched(config, parts.rope)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", **ATTENTION)
        return parts.pre_normed(at, attention, parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)


ATTENTION = {"norm_after_rope": True, "norm_names": ("query_layernorm", "key_layernorm")}
"""What is special in attention."""


def stretched(config: Config, rope: Rope) -> Rope:
    """The base times ``alpha ** (dim / (dim - 2))``, which checkpoints call ``"dynamic"``. Raises CheckpointError."""
    settings = rope.parameters
    if settings["rope_type"] != "dynamic":
        return rope
    alpha = settings.get("alpha")
    if not isinstance(alpha, (int, float)) or alpha <= 0:
        raise config.refuse("rope_type = 'dynamic' without a positive alpha")
    theta = settings["rope_theta"] * alpha ** (rope.dim / (rope.dim - 2))
    return Rope.with_settings(rope.dim, rope.positions, {"rope_type": "default", "rope_theta": theta})

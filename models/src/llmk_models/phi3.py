"""Phi-3 (arXiv:2404.14219) and Phi-4-mini (arXiv:2503.01743): Llama with packed projections in the checkpoint,
LongRoPE, and rotation of a part of each head."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual, Rope
from llmk_models.parts import Family, Parts, with_values

FAMILY = Family(windows="all", window=None, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""
_LONGROPE = ("longrope", "su", "yarn")
"""The names that LongRoPE has in checkpoints."""


def tree(config: Config) -> CausalLM:
    """The tree of a Phi-3, Phi-3.5-mini, Phi-4 or Phi-4-mini checkpoint."""
    original = config.size("original_max_position_embeddings", 4096)
    config = with_values(config, original_max_position_embeddings=original)
    parts = Parts(config, FAMILY)
    parts.rope = _longrope(config, parts.rope)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        names = ("", "", "", "o_proj")  # of queries, keys and values, only the packed tensor is stored
        attention = parts.attention(f"{at}.self_attn", parts.windows[index], names=names)
        return parts.pre_normed(at, attention, parts.packed_mlp(f"{at}.mlp"))

    return parts.decoder(layer)


def _longrope(config: Config, rope: Rope) -> Rope:
    """The settings under their present name, checked. Raises CheckpointError."""
    settings = rope.parameters
    if settings["rope_type"] == "default":
        return rope
    if settings["rope_type"] not in _LONGROPE:
        raise config.refuse(f"rope_type = {settings['rope_type']!r}, which is neither 'default' nor 'longrope'")
    for key in ("short_factor", "long_factor"):
        factors = settings.get(key) or []
        if len(factors) != rope.rotary_dim // 2:
            raise config.refuse(f"{key} of {len(factors)} numbers for {rope.rotary_dim // 2} pairs of a head")
    original = config.size("original_max_position_embeddings")
    return Rope.with_settings(
        rope.dim, rope.positions, settings | {"rope_type": "longrope", "original_max_position_embeddings": original}
    )

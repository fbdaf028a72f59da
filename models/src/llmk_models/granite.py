"""Granite 3: Llama with factors of embeddings, attention, residuals and logits, as in μP (arXiv:2203.03466)."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias", "mlp_bias"))
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Granite checkpoint. Attention is scaled by ``attention_multiplier``, not by the size of a head."""
    parts = Parts(config, FAMILY)
    embeddings, attention, residuals, divisor = (
        config.positive(key, 1.0)
        for key in ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    )

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        mixer = parts.attention(f"{at}.self_attn", scale=attention)
        return parts.pre_normed(at, mixer, parts.mlp(f"{at}.mlp"), scale=residuals)

    scale = None if embeddings == 1.0 else embeddings
    return parts.decoder(layer, scale=scale, scale_given=scale is not None, logits_scale=1 / divisor)

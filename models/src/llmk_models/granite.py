"""Granite 3: Llama with factors of embeddings, attention, residuals and logits, as in μP (arXiv:2203.03466)."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.factors import Factors
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias", "mlp_bias"))
"""These numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Granite checkpoint. Attention is scaled by ``attention_multiplier``, not by the size of a head."""
    parts, factors = Parts(config, FAMILY), Factors.of(config)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        mixer = parts.attention(f"{at}.self_attn", scale=factors.attention)
        return parts.pre_normed(at, mixer, parts.mlp(f"{at}.mlp"), scale=factors.residuals)

    return parts.decoder(layer, **factors.of_decoder)

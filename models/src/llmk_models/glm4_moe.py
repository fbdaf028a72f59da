"""GLM-4.5, 4.6 and 4.7 (arXiv:2508.06471): rotation of a half of each head, and experts that are chosen by sigmoid
scores with a bias."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, MakeLayer, Parts, ahead_of
from llmk_models.sigmoid_experts import sigmoid_experts

FAMILY = Family(num_kv_heads=8, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a GLM-4.5 checkpoint."""
    parts, layer = _decoder(config)
    return parts.decoder(layer, ignored=parts.names_ahead)


def _decoder(config: Config) -> tuple[Parts, MakeLayer]:
    """Its parts, and what makes a layer."""
    parts = Parts(config, FAMILY, partial_rotary_factor=0.5)
    parts.qkv_bias = config.flag("attention_bias", False)
    parts.qk_norm = parts.eps if config.flag("use_qk_norm", False) else None
    feed_forward = sigmoid_experts(parts, num_experts=128, top_k=8, dense=1, shared=1)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), feed_forward(index, f"{at}.mlp"))

    return parts, layer


ahead = ahead_of(_decoder)
"""The heads that predict further tokens (MTP)."""

"""GLM-4.7-Flash: latent attention, and experts that are chosen by sigmoid scores with a bias."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, LatentAttention, Residual, Rope
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, latent_shape
from llmk_models.parts import Family, MakeLayer, Parts, ahead_of, with_values
from llmk_models.sigmoid_experts import sigmoid_experts

FAMILY = Family(norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""
_SIZES = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}


def tree(config: Config) -> CausalLM:
    """The tree of a GLM-4.7-Flash checkpoint."""
    parts, layer = _decoder(config)
    return parts.decoder(layer, ignored=parts.names_ahead)


def _decoder(config: Config) -> tuple[Parts, MakeLayer]:
    """Its parts, and what makes a layer."""
    config = with_values(config, **{key: config.values.get(key, default) for key, default in _SIZES.items()})
    config.choice("rope_interleave", True)
    parts, latent = Parts(config, FAMILY), latent_shape(config)
    parts.rope = rope = Rope.of(config, latent.qk_rope_head_dim)
    sizes: dict[str, Any] = {"num_experts": 64, "top_k": 4, "dense": 1, "shared": 1, "inner_size": 1536}
    feed_forward = sigmoid_experts(parts, **sizes, scaling=1.8)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = LatentAttention.of(f"{at}.self_attn", latent, rope, LATENT_NORM_EPS)
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))

    return parts, layer


ahead = ahead_of(_decoder)
"""The heads that predict further tokens (MTP)."""

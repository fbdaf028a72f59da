"""DeepSeek-V3: latent attention, and experts that are chosen by sigmoid scores with a bias (arXiv:2412.19437)."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, LatentAttention, Residual, Rope
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, UNSERVED_HINT, latent_shape
from llmk_models.parts import Family, MakeLayer, Parts, ahead_of
from llmk_models.sigmoid_experts import sigmoid_experts

_SERVED = {
    "hidden_act": ("silu", "swish"),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "moe_layer_freq": (1,),
    "rope_interleave": (True,),
}
"""Values of the config's options that this implementation supports, the default first."""


def tree(config: Config) -> CausalLM:
    """The tree of a DeepSeek-V3 checkpoint. All layers have experts, except the first ``first_k_dense_replace``."""
    parts, layer = _decoder(config)
    return parts.decoder(layer, ignored=parts.names_ahead)


def _decoder(config: Config) -> tuple[Parts, MakeLayer]:
    """Its parts, and what makes a layer. Numbers are the defaults of transformers' config class."""
    for key, served in _SERVED.items():
        config.choice(key, *served, hint=UNSERVED_HINT)
    parts = Parts(config, Family())
    latent = latent_shape(config)
    sizes: dict[str, Any] = {"num_experts": 256, "top_k": 8, "dense": 3, "shared": 1, "inner_size": 2048}
    feed_forward = sigmoid_experts(parts, **sizes, scaling=2.5, groups=(8, 4))
    rope = parts.rope = Rope.of(config, latent.qk_rope_head_dim)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = LatentAttention.of(f"{at}.self_attn", latent, rope, LATENT_NORM_EPS)
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))

    return parts, layer


ahead = ahead_of(_decoder)
"""The heads that predict further tokens (MTP)."""

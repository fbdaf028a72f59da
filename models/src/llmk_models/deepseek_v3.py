"""DeepSeek-V3: latent attention, and experts that are chosen by sigmoid scores with a bias (arXiv:2412.19437)."""

from __future__ import annotations

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, LatentAttention, MoE, Residual, Rope
from llmk.tree.config import MOST_EXPERTS
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, UNSERVED_HINT, latent_shape
from llmk_models.parts import Family, Parts

_SERVED = {
    "hidden_act": ("silu", "swish"),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "moe_layer_freq": (1,),
    "rope_interleave": (True,),
}
"""Values of the config's options that this implementation supports, the default first."""


def tree(config: Config) -> CausalLM:
    """The tree of a DeepSeek-V3 checkpoint. All layers have experts, except the first ``first_k_dense_replace``. The
    layer that predicts a further token (MTP), which is stored after the others, is not used."""
    for key, served in _SERVED.items():
        config.choice(key, *served, hint=UNSERVED_HINT)
    parts = Parts(config, Family())
    latent, experts = latent_shape(config), _experts(config)
    rope = parts.rope = Rope.of(config, latent.qk_rope_head_dim)
    dense = config.count("first_k_dense_replace", 3)
    shared_size = experts.intermediate_size * config.count("n_shared_experts", 1)

    def feed_forward(index: int, at: str) -> Block:
        if index < dense:
            return parts.mlp(at)
        shared = {"prefix": "shared_", "partial": True}
        mlp = parts.mlp(f"{at}.shared_experts", shared_size, **shared) if shared_size else None
        return MoE.of(at, experts, shared=mlp)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = LatentAttention.of(f"{at}.self_attn", latent, rope, LATENT_NORM_EPS)
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer, ignored=(rf"model\.layers\.{parts.num_layers}\..*",))


def _experts(config: Config) -> MoEFacts:
    """These numbers are the defaults of transformers' config class."""
    return MoEFacts(
        site="moe",
        num_experts=config.size("n_routed_experts", 256, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 8),
        hidden_size=config.size("hidden_size"),
        intermediate_size=config.size("moe_intermediate_size", 2048),
        renormalize=config.flag("norm_topk_prob", True),
        scoring="sigmoid",
        selection_bias=True,
        scaling=config.number("routed_scaling_factor", 2.5),
        num_groups=config.size("n_group", 8),
        top_groups=config.size("topk_group", 4),
        group_scoring="top2_sum",
    )

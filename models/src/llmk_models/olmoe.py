"""OLMoE (arXiv:2409.02060): experts in every layer, and norms of queries and keys over all heads together."""

from __future__ import annotations

from llmk.api import MoEFacts
from llmk.tree import CausalLM, Config, MoE, Residual
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of an OLMoE checkpoint."""
    parts = Parts(config, FAMILY)
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("num_experts", 64, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 8),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
        renormalize=config.flag("norm_topk_prob", False),
    )

    clip = config.positive("clip_qkv", None)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", whole_qk_norm=True, clip=clip)
        return parts.pre_normed(at, attention, MoE.of(f"{at}.mlp", experts))

    return parts.decoder(layer)

"""Mixtral: Mistral's decoder with a mixture of experts in every layer (arXiv:2401.04088)."""

from __future__ import annotations

from llmk.api import MoEFacts
from llmk.tree import CausalLM, Config, MoE, Residual
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts

FAMILY = Family(windows="all", window=None, num_kv_heads=8, norm_eps=1e-5, rope_theta=1e6)
"""The numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Mixtral checkpoint."""
    parts = Parts(config, FAMILY)
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("num_local_experts", 8, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 2),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
    )

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        # In the format of transformers 5, the block's name is ``mlp``, as in other models.
        names, aliases = ("w1", "w3", "w2"), (f"{at}.mlp",)
        block = MoE.of(f"{at}.block_sparse_moe", experts, names=names, aliases=aliases)
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn", parts.windows[index]), block)

    return parts.decoder(layer)

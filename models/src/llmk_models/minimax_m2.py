"""MiniMax-M2: norms of queries and keys over all heads together, rotation of a part of each head, and experts that are
chosen by sigmoid scores with a bias."""

from __future__ import annotations

from typing import Any

from llmk.api import MoEFacts
from llmk.tree import CausalLM, Config, MoE, Residual, Rope
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts

FAMILY = Family(qk_norm=True, head_dim=128, num_kv_heads=8, rope_theta=5_000_000.0)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a MiniMax-M2 checkpoint."""
    config.choice("scoring_func", "sigmoid")
    parts = Parts(config, FAMILY)
    if (rotary := config.size("rotary_dim", None)) is not None:  # the old name
        partial = {"partial_rotary_factor": rotary / parts.heads.dim}
        parts.rope = Rope.with_settings(parts.heads.dim, parts.rope.positions, partial | parts.rope.parameters)
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("num_local_experts", 256, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 8),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
        scoring="sigmoid",
        selection_bias=True,
    )
    own: dict[str, Any] = {"names": ("w1", "w3", "w2"), "selection_bias": "e_score_correction_bias"}

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", whole_qk_norm=True)
        moe = MoE.of(f"{at}.block_sparse_moe", experts, aliases=(f"{at}.mlp",), **own)
        return parts.pre_normed(at, attention, moe)

    return parts.decoder(layer)

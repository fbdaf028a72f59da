"""Granite 3 MoE: Granite's factors, with experts in every layer, which the checkpoint stores stacked."""

from __future__ import annotations

from llmk.api import MoEFacts
from llmk.tree import CausalLM, Config, GatedMLP, Linear, MoE, Residual
from llmk.tree.config import MOST_EXPERTS
from llmk_models.factors import Factors
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias",))
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Granite 3 MoE checkpoint, perhaps with a shared expert."""
    parts, factors = Parts(config, FAMILY), Factors.of(config)
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("num_local_experts", 8, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 2),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
    )

    shared_size = config.count("shared_intermediate_size", 0)

    def shared(at: str) -> GatedMLP | None:
        hidden, rows = parts.hidden_size, (shared_size, shared_size)
        if not shared_size:
            return None
        gate_up = Linear.packed(f"{at}.input_linear", "shared_gate_up", hidden, ("", ""), rows)
        down = Linear.row(f"{at}.output_linear", "shared_down", shared_size, hidden, partial=True)
        return GatedMLP(at=at, gate_up=gate_up, down=down)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        mixer, block = parts.attention(f"{at}.self_attn", scale=factors.attention), f"{at}.block_sparse_moe"
        stacked = f"{block}.input_linear.weight", f"{block}.output_linear.weight"
        moe = MoE.of(block, experts, router="router.layer", stacked=stacked, shared=shared(f"{at}.shared_mlp"))
        return parts.pre_normed(at, mixer, moe, scale=factors.residuals)

    return parts.decoder(layer, **factors.of_decoder)

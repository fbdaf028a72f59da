"""Granite 4: Granite's factors, Mamba-2 in most layers, and experts alongside a shared MLP, or the MLP alone."""

from __future__ import annotations

from typing import Any

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, GatedMLP, Linear, MoE, Residual, ScanMixer
from llmk.tree.config import MOST_EXPERTS
from llmk_models.factors import Factors
from llmk_models.parts import Family, Parts
from llmk_models.state_space import ScanKeys, attending_layers, scan_sizes

FAMILY = Family(bias_flags=("attention_bias",))
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Granite 4 checkpoint. Attention is only rotated where ``position_embedding_type`` says so."""
    parts, factors = Parts(config, FAMILY), Factors.of(config)
    attends = attending_layers(config, parts.num_layers, (False,) * parts.num_layers)
    inner = int(config.positive("mamba_expand", 2) * parts.hidden_size)
    sizes, bias = scan_sizes(config, inner, ScanKeys()), config.flag("mamba_proj_bias", False)
    rotated = config.choice("position_embedding_type", "nope", "rope") == "rope"
    config.choice("normalization_function", "rmsnorm")
    feed_forward = _feed_forward(parts)

    def mixer(index: int, at: str) -> Block:
        if attends[index]:
            return parts.attention(f"{at}.self_attn", scale=factors.attention, rotated=rotated)
        return ScanMixer.of(f"{at}.mamba", parts.hidden_size, sizes, parts.eps, bias=bias, out_bias=bias)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, at), feed_forward(at), scale=factors.residuals)

    return parts.decoder(layer, **factors.of_decoder)


def _feed_forward(parts: Parts) -> Any:
    """What makes the second block of the layer ``at``."""
    config, hidden = parts.config, parts.hidden_size
    num_experts = config.count("num_local_experts", 8, most=MOST_EXPERTS)
    top_k, shared = config.size("num_experts_per_tok", 2), config.size("shared_intermediate_size", 1024)
    sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": parts.inner_size}
    experts = MoEFacts(site="moe", num_experts=num_experts, top_k=top_k, **sizes)

    def make(at: str) -> Block:
        mlp, block, role = f"{at}.shared_mlp", f"{at}.block_sparse_moe", "shared_" if num_experts else ""
        gate_up = Linear.packed(f"{mlp}.input_linear", f"{role}gate_up", hidden, ("", ""), (shared, shared))
        down = Linear.row(f"{mlp}.output_linear", f"{role}down", shared, hidden, partial=bool(num_experts))
        own = GatedMLP(at=mlp, gate_up=gate_up, down=down)
        stacked = f"{block}.input_linear.weight", f"{block}.output_linear.weight"
        return MoE.of(block, experts, router="router.layer", stacked=stacked, shared=own) if num_experts else own

    return make

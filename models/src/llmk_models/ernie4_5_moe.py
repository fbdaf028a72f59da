"""Ernie 4.5 MoE: Ernie's decoder with experts in most layers, chosen by softmax scores with a bias, and shared ones."""

from __future__ import annotations

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, MoE, Residual
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Parts

FAMILY = Family(num_kv_heads=4, norm_eps=1e-5, rope_theta=500000.0, tied=True, neighbours=True)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of an Ernie 4.5 MoE checkpoint. Every ``moe_layer_interval``-th layer from ``moe_layer_start_index`` to
    ``moe_layer_end_index`` has experts. The layers that predict further tokens (MTP) are not used."""
    config.choice("moe_use_aux_free", True)
    parts = Parts(config, FAMILY)
    biases = parts.qkv_bias = parts.out_bias = parts.mlp_bias = config.flag("use_bias", False)
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("moe_num_experts", 64, most=MOST_EXPERTS),
        top_k=config.size("moe_k", 6),
        hidden_size=parts.hidden_size,
        intermediate_size=config.size("moe_intermediate_size", 1536),
        selection_bias=True,
    )
    shared_size = experts.intermediate_size * config.count("moe_num_shared_experts", 2)
    first, interval = config.count("moe_layer_start_index", 1), config.size("moe_layer_interval", 1)
    end = config.number("moe_layer_end_index", -1)
    last = parts.num_layers - 1 if end == -1 else end

    def feed_forward(index: int, at: str) -> Block:
        if (index + 1) % interval or not first <= index <= last:
            return parts.mlp(at)
        own = {"prefix": "shared_", "partial": True}
        mlp = parts.mlp(f"{at}.shared_experts", shared_size, **own) if shared_size else None
        return MoE.of(at, experts, shared=mlp, selection_bias="moe_statics.e_score_correction_bias")

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer, head_bias=biases, ignored=(r"model\.mtp_.*",))

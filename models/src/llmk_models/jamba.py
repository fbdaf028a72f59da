"""Jamba: Mamba-1's scan in most layers, attention without rotation in the others, experts in some
(arXiv:2403.19887)."""

from __future__ import annotations

from functools import partial

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, MoE, Norm, Residual, SelectiveMixer, SelectiveScanSizes
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Names, Parts

FAMILY = Family(num_kv_heads=8)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Jamba checkpoint."""
    parts = Parts(config, FAMILY)
    parts.names = Names(norm="final_layernorm", before=("input_layernorm", "pre_ff_layernorm"))
    hidden, layers = parts.hidden_size, range(parts.num_layers)
    sizes = SelectiveScanSizes(
        channels=config.size("mamba_expand", 2) * hidden,
        state_size=config.size("mamba_d_state", 16),
        conv_kernel=config.size("mamba_d_conv", 4),
        conv_bias=config.flag("mamba_conv_bias", True),
    )
    auto, bias = config.values.get("mamba_dt_rank") == "auto", config.flag("mamba_proj_bias", False)
    rank = -(-hidden // 16) if auto else config.size("mamba_dt_rank", -(-hidden // 16))
    attends = {i for i in layers if i % config.size("attn_layer_period", 8) == config.count("attn_layer_offset", 4)}
    num_experts = config.count("num_local_experts", 16, most=MOST_EXPERTS)
    num_experts = config.count("num_experts", num_experts, most=MOST_EXPERTS)
    period, offset = config.size("expert_layer_period", 2), config.count("expert_layer_offset", 1)
    experts = MoEFacts(
        site="moe",
        num_experts=num_experts,
        top_k=config.size("num_experts_per_tok", 2),
        hidden_size=hidden,
        intermediate_size=parts.inner_size,
        renormalize=False,
    )

    def mixer(index: int, at: str) -> Block:
        if index in attends:
            return parts.attention(f"{at}.self_attn", rotated=False)
        at, norm = f"{at}.mamba", partial(Norm, eps=parts.eps)
        norms = (
            norm(at=f"{at}.dt_layernorm", role="scan_steps_norm", size=rank),
            norm(at=f"{at}.b_layernorm", role="scan_b_norm", size=sizes.state_size),
            norm(at=f"{at}.c_layernorm", role="scan_c_norm", size=sizes.state_size),
        )
        return SelectiveMixer.of(at, hidden, rank, sizes, bias=bias, norms=norms)

    def feed_forward(index: int, at: str) -> Block:
        sparse = num_experts > 1 and index % period == offset
        return MoE.of(at, experts, router="router") if sparse else parts.mlp(at)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, at), feed_forward(index, f"{at}.feed_forward"))

    return parts.decoder(layer)

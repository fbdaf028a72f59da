"""Qwen3-Next: gated delta rule in most layers, gated attention in the others, routed experts and a shared one
(arXiv:2412.06464, arXiv:2505.06708)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from llmk.tree import Block, CausalLM, Config, DeltaNetSizes, Linear, MoE, Recurrent, Residual
from llmk_models.parts import Family, Parts
from llmk_models.qwen_delta import delta_attends, delta_sizes
from llmk_models.qwen_experts import qwen_experts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, head_dim=256, num_kv_heads=2, norm_offset=1.0)
"""These and the following numbers are the defaults of transformers' config class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMixer(Block):
    """The gated delta rule with its projections, which are interleaved by key head."""

    implementation: ClassVar[str] = "llmk_models.delta_mixer:DeltaMixer"

    into: Linear
    """To queries, keys, values and the gate."""
    scalars: Linear
    """To two values per head."""
    net: Recurrent
    out: Linear

    @classmethod
    def of(cls, at: str, hidden_size: int, sizes: DeltaNetSizes, eps: float) -> Self:
        """With the names of Qwen3-Next."""
        values, units = sizes.num_heads * sizes.value_dim, sizes.units
        scalars = ("delta_scalars", hidden_size, 2 * sizes.num_heads, units)
        return cls(
            at=at,
            into=Linear.column(f"{at}.in_proj_qkvz", "delta_in", hidden_size, sum(sizes.conv_parts) + values, units),
            scalars=Linear.column(f"{at}.in_proj_ba", *scalars, quantizable=False),
            net=Recurrent(at=at, sizes=sizes, eps=eps),
            out=Linear.row(f"{at}.out_proj", "delta_out", values, hidden_size),
        )

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))


def tree(config: Config) -> CausalLM:
    """The tree of a Qwen3-Next checkpoint. The heads that predict several tokens at once (``mtp``) are not used."""
    parts = Parts(config, FAMILY, partial_rotary_factor=0.25)
    sizes, attends = delta_sizes(config), delta_attends(config, parts.num_layers)
    experts, sparse = qwen_experts(parts, num_experts=512, top_k=10, inner_size=512, renormalize=True)
    shared_size = config.count("shared_expert_intermediate_size", 512)

    def mixer(index: int, at: str) -> Block:
        if attends[index]:
            return parts.attention(f"{at}.self_attn", gated=True)
        return DeltaMixer.of(f"{at}.linear_attn", parts.hidden_size, sizes, parts.eps)

    def feed_forward(index: int, at: str) -> Block:
        if not sparse[index]:
            return parts.mlp(at)
        shared = parts.mlp(f"{at}.shared_expert", shared_size, prefix="shared_expert.", partial=True)
        return MoE.of(at, experts, shared=shared, shared_gate="shared_expert_gate")

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, at), feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer, ignored=(r"mtp\..*",))

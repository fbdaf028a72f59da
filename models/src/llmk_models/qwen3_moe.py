"""Qwen3-MoE: Qwen3's decoder with a mixture of experts in most layers (arXiv:2505.09388)."""

from __future__ import annotations

from llmk.tree import Block, CausalLM, Config, MoE, Residual
from llmk_models.parts import Family, Parts
from llmk_models.qwen_experts import qwen_experts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, windows="all switched", num_kv_heads=4)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Qwen3-MoE checkpoint."""
    parts = Parts(config, FAMILY)
    experts, sparse = qwen_experts(parts, num_experts=128, top_k=8, inner_size=768, renormalize=False)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        block: Block = MoE.of(f"{at}.mlp", experts) if sparse[index] else parts.mlp(f"{at}.mlp")
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn", parts.windows[index]), block)

    return parts.decoder(layer)

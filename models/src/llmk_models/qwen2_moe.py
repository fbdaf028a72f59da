"""Qwen2-MoE: Qwen2's decoder with routed experts in most layers, and a shared one with a gate (arXiv:2407.10671)."""

from __future__ import annotations

from llmk.tree import Block, CausalLM, Config, MoE, Residual
from llmk_models.parts import Family, Parts
from llmk_models.qwen_experts import qwen_experts

FAMILY = Family(windows="alternating", num_kv_heads=16)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Qwen2-MoE checkpoint."""
    parts = Parts(config, FAMILY)
    parts.qkv_bias = config.flag("qkv_bias", True)
    parts.windows = _windows(config, parts.windows)
    experts, sparse = qwen_experts(parts, num_experts=60, top_k=4, inner_size=1408, renormalize=False)
    shared_size = config.size("shared_expert_intermediate_size", 5632)

    def feed_forward(index: int, at: str) -> Block:
        if not sparse[index]:
            return parts.mlp(at)
        shared = parts.mlp(f"{at}.shared_expert", shared_size, prefix="shared_expert.", partial=True)
        return MoE.of(at, experts, shared=shared, shared_gate="shared_expert_gate")

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", parts.windows[index])
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer)


def _windows(config: Config, alternating: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Each layer's sliding window, if ``use_sliding_window`` is set: by ``layer_types`` if the config has it; else
    every other layer from the first has the window, up to ``max_window_layers``."""
    if not config.flag("use_sliding_window", False):
        return (None,) * len(alternating)
    if config.texts("layer_types"):
        return alternating
    last = config.count("max_window_layers", 28)
    return tuple(window if layer < last else None for layer, window in enumerate(alternating))

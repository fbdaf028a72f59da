"""Llama, Mistral, Qwen2 and Qwen3: one decoder, whose families differ in biases, query and key norms, and windows."""

from __future__ import annotations

from collections.abc import Mapping

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(bias_flags=("attention_bias", "mlp_bias")),
    "MistralForCausalLM": Family(windows="all", num_kv_heads=8),
    "MinistralForCausalLM": Family(windows="stated", num_kv_heads=8),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windows="switched", num_kv_heads=32),
    "Qwen3ForCausalLM": Family(
        bias_flags=("attention_bias",), qk_norm=True, windows="switched", head_dim=128, num_kv_heads=32
    ),
}
"""By architecture; the numbers are the defaults of transformers' config classes."""


def tree(config: Config) -> CausalLM:
    """The tree of a Llama, Mistral, Qwen2 or Qwen3 checkpoint."""
    parts = Parts(config, FAMILIES[config.architecture])

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", parts.windows[index])
        return parts.pre_normed(at, attention, parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)

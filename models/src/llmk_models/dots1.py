"""dots.llm1 (arXiv:2506.05767): norms of queries and keys, and experts that are chosen by sigmoid scores with a
bias."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts
from llmk_models.sigmoid_experts import sigmoid_experts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, windows="late", num_kv_heads=32)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a dots.llm1 checkpoint."""
    parts = Parts(config, FAMILY)
    numbers = config.size("n_routed_experts"), config.size("num_experts_per_tok")
    feed_forward = sigmoid_experts(
        parts, num_experts=numbers[0], top_k=numbers[1], dense=0, shared=0, renormalize=False
    )

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", parts.windows[index])
        return parts.pre_normed(at, attention, feed_forward(index, f"{at}.mlp"))

    return parts.decoder(layer)

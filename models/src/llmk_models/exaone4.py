"""Exaone 4 (arXiv:2507.11407): norms after the blocks alone, norms of queries and keys; where some layers have a
sliding window, only those rotate queries and keys."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts
from llmk_models.windows import FULL, SLIDING, layer_kinds

FAMILY = Family(qk_norm=True, norm_eps=1e-5, num_kv_heads=32)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of an Exaone 4 checkpoint."""
    parts = Parts(config, FAMILY)
    window = config.nullable(config.size, "sliding_window", 4096)
    kinds: tuple[str, ...] = (FULL,) * parts.num_layers
    if window is not None:
        pattern = config.values.get("sliding_window_pattern")  # every fourth layer is full: 4, or "LLLG"
        period = len(pattern) if isinstance(pattern, str) else config.size("sliding_window_pattern", 4)
        kinds = layer_kinds(config, parts.num_layers, period=period)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        sliding = kinds[index] == SLIDING
        rotated = sliding or window is None
        return parts.post_normed(
            at,
            parts.attention(f"{at}.self_attn", window if sliding else None, rotated=rotated),
            parts.mlp(f"{at}.mlp"),
        )

    return parts.decoder(layer)

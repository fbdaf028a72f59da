"""OLMo 2 (arXiv:2501.00656) and OLMo 3 (arXiv:2512.13961): norms after the blocks alone, norms of queries and keys over
all heads together. OLMo 3 has sliding windows in most layers, and scaled RoPE in the others alone."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual, Rope
from llmk_models.parts import Family, Parts
from llmk_models.windows import FULL, SLIDING, layer_kinds, sliding_rope

_OLMO2 = Family(bias_flags=("attention_bias",), qk_norm=True, norm_eps=1e-5)
_OLMO3 = Family(bias_flags=("attention_bias",), qk_norm=True, norm_eps=1e-5, rope_theta=500000.0)
"""These and the following numbers are the defaults of transformers' config classes."""


def tree(config: Config) -> CausalLM:
    """The tree of an OLMo 2 or OLMo 3 checkpoint."""
    has_windows = config.architecture == "Olmo3ForCausalLM"
    parts = Parts(config, _OLMO3, kind=FULL) if has_windows else Parts(config, _OLMO2)
    kinds: tuple[str, ...] = (FULL,) * parts.num_layers
    by_kind: dict[str, tuple[int | None, Rope]] = {FULL: (None, parts.rope)}
    if has_windows:
        kinds = layer_kinds(config, parts.num_layers, period=4)
        window = config.nullable(config.size, "sliding_window", 4096)
        by_kind[SLIDING] = (window, sliding_rope(config, parts.rope, config.positive("rope_theta", 500000.0)))

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", *by_kind[kinds[index]], whole_qk_norm=True)
        return parts.post_normed(at, attention, parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)

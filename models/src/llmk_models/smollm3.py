"""SmolLM3: Llama whose every fourth layer does not rotate queries and keys (NoPE, arXiv:2305.19466)."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.no_rope import rotated_layers
from llmk_models.parts import Family, Parts

FAMILY = Family(
    bias_flags=("attention_bias", "mlp_bias"),
    windows="switched",
    window=None,
    num_kv_heads=4,
    rope_theta=2_000_000.0,
    tied=True,
)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a SmolLM3 checkpoint. Windows are in the layers without rotation, unless ``layer_types`` says
    otherwise."""
    parts = Parts(config, FAMILY)
    rotated = rotated_layers(config, parts.num_layers)
    windows = parts.windows
    if config.flag("use_sliding_window", False) and not config.texts("layer_types"):
        window = config.nullable(config.count, "sliding_window", None) or None
        windows = tuple(None if each else window for each in rotated)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", windows[index], rotated=rotated[index])
        return parts.pre_normed(at, attention, parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer)

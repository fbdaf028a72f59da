"""Command R and Command A: attention and MLP side by side, LayerNorm without biases, rotation by pairs of neighbours,
and a factor of the logits. Command R+ norms each query and key head; Command R7B and A have windows in most layers, and
rotate in those alone."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts, with_values
from llmk_models.windows import FULL, SLIDING, layer_kinds

_COHERE = Family(
    bias_flags=("attention_bias",), eps_key="layer_norm_eps", norm_eps=1e-5, centered=True, tied=True, neighbours=True,
    rope_theta=500000.0,
)  # fmt: skip
_COHERE2 = Family(
    bias_flags=("attention_bias",), eps_key="layer_norm_eps", norm_eps=1e-5, centered=True, tied=True, neighbours=True
)
"""These and the following numbers are the defaults of transformers' config classes."""


def tree(config: Config) -> CausalLM:
    """The tree of a Command R, R7B or A checkpoint."""
    has_windows = config.architecture == "Cohere2ForCausalLM"
    if (longest := config.size("model_max_length", None)) is not None:  # the first configs state a shorter one, too
        config = with_values(config, max_position_embeddings=longest)
    parts = Parts(config, _COHERE2 if has_windows else _COHERE)
    window, kinds = None, (FULL,) * parts.num_layers
    has_norms = not has_windows and config.flag("use_qk_norm", False)
    own: dict[str, Any] = {"own_qk_norms": True, "qk_norm": parts.eps} if has_norms else {}
    if has_windows:
        window = config.nullable(config.size, "sliding_window", 4096)
        kinds = layer_kinds(config, parts.num_layers, period=config.size("sliding_window_pattern", 4))

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        sliding = kinds[index] == SLIDING and window is not None
        rotated = sliding or not has_windows
        attention = parts.attention(f"{at}.self_attn", window if sliding else None, rotated=rotated, **own)
        return parts.parallel(at, "input_layernorm", attention, parts.mlp(f"{at}.mlp"))

    return parts.decoder(layer, logits_scale=config.number("logit_scale", 0.0625))

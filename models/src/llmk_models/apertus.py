"""Apertus (arXiv:2509.14233): norms of queries and keys, and an MLP without a gate, whose activation has parameters
(xIELU)."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, Residual, Rope
from llmk_models.parts import Family, Parts

FAMILY = Family(
    bias_flags=("attention_bias",), qk_norm=True, norm_eps=1e-5, rope_theta=12_000_000.0, activations=("xielu",)
)
"""These and the following numbers are the defaults of transformers' config class."""

_ROPE: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0}
_ROPE |= {"original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""The rotary settings of a config without any."""


def tree(config: Config) -> CausalLM:
    """The tree of an Apertus checkpoint."""
    parts = Parts(config, FAMILY)
    if not (config.rope("rope_parameters") or config.rope("rope_scaling")):
        parts.rope = Rope.with_settings(parts.heads.dim, parts.rope.positions, _ROPE)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        before, then = (parts.norm(f"{at}.{name}_layernorm") for name in ("attention", "feedforward"))
        mlp = parts.plain_mlp(f"{at}.mlp", "xielu")
        return Residual(norm=before, block=parts.attention(f"{at}.self_attn")), Residual(norm=then, block=mlp)

    return parts.decoder(layer)

"""Nemotron 4 and Minitron (arXiv:2402.16819): LayerNorm whose weights are stored less one, an MLP with squared ReLU,
and rotation of a part of each head."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(
    bias_flags=("attention_bias", "mlp_bias"),
    eps_key="norm_eps",
    norm_eps=1e-5,
    activations=("relu2",),
    norm_offset=1.0,
    centered=True,
    norm_bias=True,
)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Nemotron checkpoint."""
    parts = Parts(config, FAMILY, partial_rotary_factor=0.5)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), parts.plain_mlp(f"{at}.mlp", "relu2"))

    return parts.decoder(layer)

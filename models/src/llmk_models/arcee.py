"""Arcee's AFM: Llama whose MLP has no gate, but squared ReLU."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(bias_flags=("attention_bias", "mlp_bias"), norm_eps=1e-5, activations=("relu2",))
"""These numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of an Arcee checkpoint."""
    parts = Parts(config, FAMILY)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), parts.plain_mlp(f"{at}.mlp", "relu2"))

    return parts.decoder(layer)

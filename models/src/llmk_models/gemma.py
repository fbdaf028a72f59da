"""Gemma (arXiv:2403.08295): GEGLU, norms whose weights are stored less one, scaled embeddings."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(
    bias_flags=("attention_bias",), num_kv_heads=16, head_dim=256, tied=True, norm_offset=1.0,
    activations=("gelu_pytorch_tanh", "gelu"),
)  # fmt: skip
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Gemma checkpoint. ``hidden_act`` may say ``"gelu"``, which the first configs did, though the models
    were trained with its approximation, as ``hidden_activation`` says."""
    if config.values.get("use_bidirectional_attention"):
        problem = "use_bidirectional_attention: it does not generate text from left to right"
        raise config.refuse(problem, hint="serve a causal language model")
    parts = Parts(config, FAMILY)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        mlp = parts.mlp(f"{at}.mlp", activation="gelu_tanh")
        return parts.pre_normed(at, parts.attention(f"{at}.self_attn"), mlp)

    return parts.decoder(layer, scale=parts.hidden_size**0.5)

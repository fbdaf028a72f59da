"""Phi-1, Phi-1.5 and Phi-2 (arXiv:2309.05463): attention and an MLP without a gate side by side, LayerNorm, biases
everywhere, and rotation of a part of each head."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Names, Parts

FAMILY = Family(
    eps_key="layer_norm_eps", norm_eps=1e-5, activations=("gelu_new",), centered=True, norm_bias=True, qkv_bias=True
)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Phi-1, Phi-1.5 or Phi-2 checkpoint."""
    config.choice("qk_layernorm", False)
    parts = Parts(config, FAMILY, partial_rotary_factor=0.5)
    parts.names = Names(norm="final_layernorm")
    parts.out_bias = parts.mlp_bias = True

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", names=("q_proj", "k_proj", "v_proj", "dense"))
        return parts.parallel(
            at, "input_layernorm", attention, parts.plain_mlp(f"{at}.mlp", "gelu_tanh", ("fc1", "fc2"))
        )

    return parts.decoder(layer, head_bias=True)

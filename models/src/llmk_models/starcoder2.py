"""StarCoder2 (arXiv:2402.19173): LayerNorm, biases, and an MLP without a gate."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(
    windows="all",
    window=None,
    num_kv_heads=2,
    eps_key="norm_epsilon",
    norm_eps=1e-5,
    activations=("gelu_pytorch_tanh",),
    centered=True,
    norm_bias=True,
    tied=True,
)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a StarCoder2 checkpoint."""
    parts = Parts(config, FAMILY)
    parts.qkv_bias = parts.out_bias = parts.mlp_bias = config.flag("use_bias", True)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", parts.windows[index])
        return parts.pre_normed(at, attention, parts.plain_mlp(f"{at}.mlp", "gelu_tanh", ("c_fc", "c_proj")))

    return parts.decoder(layer)

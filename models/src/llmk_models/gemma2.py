"""Gemma 2: norms before and after every block, sliding windows in every other layer, soft caps (arXiv:2408.00118)."""

from __future__ import annotations

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Parts

FAMILY = Family(
    bias_flags=("attention_bias",),
    windows="alternating",
    head_dim=256,
    num_kv_heads=4,
    tied=True,
    activation_key="hidden_activation",
    activations=("gelu_pytorch_tanh",),
    norm_offset=1.0,
)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Gemma 2 checkpoint."""
    if config.values.get("use_bidirectional_attention"):
        problem = "use_bidirectional_attention: it does not generate text from left to right"
        raise config.refuse(problem, hint="serve a causal language model")
    parts = Parts(config, FAMILY)
    softcap = config.nullable(config.positive, "attn_logit_softcapping", 50.0)
    scale = config.positive("query_pre_attn_scalar", 256) ** -0.5

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attn", parts.windows[index], softcap=softcap, scale=scale)
        return parts.sandwich(at, attention, parts.mlp(f"{at}.mlp", activation="gelu_tanh"))

    cap = config.nullable(config.positive, "final_logit_softcapping", 30.0)
    return parts.decoder(layer, scale=parts.hidden_size**0.5, softcap=cap)

"""GPT-J: attention and an MLP without a gate side by side, LayerNorm, and rotation of neighbours in a part of each
head."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, Residual
from llmk_models.parts import Family, Names, Parts, with_values

FAMILY = Family(
    eps_key="layer_norm_epsilon", norm_eps=1e-5, activation_key="activation_function",
    activations=("gelu_new", "gelu_pytorch_tanh"), centered=True, norm_bias=True, neighbours=True,
)  # fmt: skip
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a GPT-J checkpoint."""
    hidden, heads, longest = (config.size(key) for key in ("n_embd", "n_head", "n_positions"))
    usual: dict[str, Any] = {"hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": longest}
    usual |= {"num_hidden_layers": config.num_layers("n_layer"), "num_key_value_heads": None, "head_dim": None}
    usual["intermediate_size"] = config.nullable(config.size, "n_inner", None) or 4 * hidden
    rotated = config.nullable(config.count, "rotary_dim", 64)
    size = max(1, hidden // heads)
    if rotated is not None and not 0 < rotated <= size:
        raise config.refuse(f"rotary_dim = {rotated}, but heads of {size} elements")
    parts = Parts(with_values(config, **usual), FAMILY, partial_rotary_factor=(rotated or size) / size)
    parts.names = Names(model="transformer", embed="wte", layers="h", norm="ln_f")
    parts.mlp_bias = True

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.attn", names=("q_proj", "k_proj", "v_proj", "out_proj"))
        return parts.parallel(at, "ln_1", attention, parts.plain_mlp(f"{at}.mlp", "gelu_tanh", ("fc_in", "fc_out")))

    return parts.decoder(layer, head_bias=True, ignored=(r".*\.attn\.(bias|masked_bias|embed_positions)",))

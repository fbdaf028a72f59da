"""MPT: ALiBi in place of rotation, LayerNorm without biases, and an MLP without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.tree import CausalLM, Config, Residual, alibi_slopes
from llmk_models.parts import Family, Names, Parts, with_values

FAMILY = Family(eps_key="layer_norm_epsilon", norm_eps=1e-5, centered=True, tied=True)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of an MPT checkpoint. Its positions have no end; ``max_seq_len`` is what it was trained for."""
    attention = config.values.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise config.refuse(f"attn_config = {attention!r}, which is no object")
    config = with_values(config, **attention)
    for key, served in {"alibi": True, "qk_ln": False, "prefix_lm": False, "no_bias": True}.items():
        config.choice(key, served)
    config.choice("attn_type", "multihead_attention")
    hidden, heads = config.size("d_model"), config.size("n_heads")
    usual: dict[str, Any] = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": None}
    usual |= {"num_hidden_layers": config.num_layers("n_layers"), "head_dim": None}
    usual["intermediate_size"] = config.size("expansion_ratio", 4) * hidden
    usual["max_position_embeddings"] = config.size("max_seq_len", 2048)
    parts = Parts(with_values(config, **usual), FAMILY)
    parts.names = Names("transformer", "wte", "blocks", "norm_f", before=("norm_1", "norm_2"))
    packed: dict[str, Any] = {"names": ("", "", "", "out_proj"), "packed": "Wqkv", "rotated": False}
    packed["slopes"] = alibi_slopes(heads, config.positive("alibi_bias_max", 8.0))
    packed["clip"] = config.nullable(config.positive, "clip_qkv", None)
    packed["scale"] = config.nullable(config.positive, "softmax_scale", None)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        mlp = parts.plain_mlp(f"{at}.ffn", "gelu")
        return parts.pre_normed(at, parts.attention(f"{at}.attn", **packed), mlp)

    return parts.decoder(layer)

"""BLOOM (arXiv:2211.05100): ALiBi in place of rotation, LayerNorm, a norm of the embeddings, and queries, keys and
values packed head by head."""

from __future__ import annotations

from typing import Any

from llmk.nn.tensor_file import read_headers, weight_files
from llmk.tree import CausalLM, Config, Residual, alibi_slopes
from llmk_models.parts import Family, Names, Parts, with_values

FAMILY = Family(eps_key="layer_norm_epsilon", norm_eps=1e-5, centered=True, norm_bias=True, tied=True)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a BLOOM checkpoint. Its positions have no end; ``seq_length`` is what it was trained for."""
    config.choice("apply_residual_connection_post_layernorm", False)
    hidden, heads = config.size(config.first("hidden_size", "n_embed")), config.size("n_head")
    usual: dict[str, Any] = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": None}
    usual |= {"num_hidden_layers": config.num_layers("n_layer"), "intermediate_size": 4 * hidden, "head_dim": None}
    usual["max_position_embeddings"] = config.size("seq_length", 2048)
    parts = Parts(with_values(config, **usual), FAMILY)
    root = _root(config)
    parts.names = Names(root, "word_embeddings", "h", "ln_f")
    parts.qkv_bias = parts.out_bias = parts.mlp_bias = True
    packed: dict[str, Any] = {"names": ("", "", "", "dense"), "packed": "query_key_value", "groups": heads}
    packed |= {"rotated": False, "slopes": alibi_slopes(heads)}

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        mlp = parts.plain_mlp(f"{at}.mlp", "gelu_tanh", ("dense_h_to_4h", "dense_4h_to_h"))
        return parts.pre_normed(at, parts.attention(f"{at}.self_attention", **packed), mlp)

    norm = parts.norm(f"{root}.word_embeddings_layernorm".lstrip("."), "embed_norm")
    return parts.decoder(layer, embed_norm=norm)


def _root(config: Config) -> str:
    """What the names of tensors start with: nothing, in the files of BLOOM's authors."""
    checkpoint = config.checkpoint
    if not checkpoint.weight_files or checkpoint.reader is not None:
        return "transformer"
    names = (tensor.name for tensor in read_headers(weight_files(checkpoint)))
    return "transformer" if any(name.startswith("transformer.") for name in names) else ""

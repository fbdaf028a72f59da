"""Falcon (arXiv:2311.16867): attention and an MLP without a gate side by side, LayerNorm, and queries, keys and values
packed by groups of heads. The larger models have a norm for each of the two."""

from __future__ import annotations

from typing import Any

from llmk.tree import Branch, CausalLM, Config, Parallel, Residual, alibi_slopes
from llmk_models.parts import Family, Names, Parts, with_values

FAMILY = Family(
    eps_key="layer_norm_epsilon", norm_eps=1e-5, activation_key="activation", activations=("gelu",),
    centered=True, norm_bias=True, tied=True,
)  # fmt: skip
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Falcon checkpoint. Those with ALiBi (Falcon-RW) scale slopes as they scale logits."""
    config, new = _with_sizes(config), config.flag("new_decoder_architecture", False)
    parts = Parts(config, FAMILY)
    parts.names = Names("transformer", "word_embeddings", "h", "ln_f")
    parts.qkv_bias = parts.out_bias = parts.mlp_bias = config.flag("bias", False)
    side_by_side = config.choice("parallel_attn", True) if new else config.flag("parallel_attn", True)
    norms = (config.size("num_ln_in_parallel_attn", None) or 2) if new else 1
    packed: dict[str, Any] = {"names": ("", "", "", "dense"), "packed": "query_key_value", "groups": parts.heads.kv}
    if config.flag("alibi", False):
        slopes = alibi_slopes(parts.heads.count, factor=parts.heads.dim**-0.5)
        packed |= {"rotated": False, "slopes": slopes}

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.self_attention", **packed)
        mlp = parts.plain_mlp(f"{at}.mlp", "gelu", ("dense_h_to_4h", "dense_4h_to_h"))
        if not side_by_side:
            return parts.pre_normed(at, attention, mlp)
        if norms == 1:
            return parts.parallel(at, "input_layernorm", attention, mlp)
        before, then = (parts.norm(f"{at}.{name}", "branch_norm") for name in ("ln_attn", "ln_mlp"))
        branches = Branch(norm=before, block=attention), Branch(norm=then, block=mlp)
        return (Residual(norm=None, block=Parallel(at=at, branches=branches)),)

    return parts.decoder(layer)


def _with_sizes(config: Config) -> Config:
    """The config with the usual names of sizes; the first Falcon models have one key-value head, or one per head."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    one = config.flag("multi_query", True) and not config.flag("new_decoder_architecture", False)
    usual = {
        "intermediate_size": config.size("ffn_hidden_size", 4 * hidden),
        "num_key_value_heads": 1 if one else config.size("num_kv_heads", heads),
        "max_position_embeddings": config.size("max_position_embeddings", 2048),
    }
    return with_values(config, **usual)

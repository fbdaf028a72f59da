"""GPT-NeoX (arXiv:2204.06745) and Pythia: attention and an MLP without a gate side by side, each with a LayerNorm of
its own, and queries, keys and values packed head by head."""

from __future__ import annotations

from typing import Any

from llmk.tree import Branch, CausalLM, Config, Parallel, Residual
from llmk_models.parts import Family, Names, Parts, with_values

FAMILY = Family(
    eps_key="layer_norm_eps", norm_eps=1e-5, activations=("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"),
    centered=True, norm_bias=True,
)  # fmt: skip
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a GPT-NeoX or Pythia checkpoint."""
    config = with_values(config, rope_theta=config.positive("rotary_emb_base", 10_000.0), num_key_value_heads=None)
    parts = Parts(config, FAMILY, partial_rotary_factor=config.positive("rotary_pct", 0.25))
    parts.names = Names(model="gpt_neox", embed="embed_in", norm="final_layer_norm", head="embed_out")
    parts.qkv_bias = parts.out_bias = config.flag("attention_bias", True)
    parts.mlp_bias = True
    activation = "gelu" if config.text("hidden_act", "gelu") == "gelu" else "gelu_tanh"
    packed: dict[str, Any] = {"names": ("", "", "", "dense"), "packed": "query_key_value", "groups": parts.heads.count}

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        attention = parts.attention(f"{at}.attention", **packed)
        mlp = parts.plain_mlp(f"{at}.mlp", activation, ("dense_h_to_4h", "dense_4h_to_h"))
        if not side_by_side:
            return parts.pre_normed(at, attention, mlp)
        before, then = (parts.norm(f"{at}.{name}_layernorm", "branch_norm") for name in ("input", "post_attention"))
        branches = Branch(norm=before, block=attention), Branch(norm=then, block=mlp)
        return (Residual(norm=None, block=Parallel(at=at, branches=branches)),)

    side_by_side = config.flag("use_parallel_residual", True)
    ignored = (r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",)
    return parts.decoder(layer, ignored=ignored)

"""Bamba: Mamba-2 in most layers, attention with half of each head rotated in the others, an MLP in each."""

from __future__ import annotations

from llmk.tree import Block, CausalLM, Config, Residual, ScanMixer
from llmk_models.parts import Family, Names, Parts
from llmk_models.state_space import ScanKeys, scan_sizes

FAMILY = Family(bias_flags=("attention_bias", "mlp_bias"), num_kv_heads=8, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""


def tree(config: Config) -> CausalLM:
    """The tree of a Bamba checkpoint. ``attn_layer_indices`` are the layers with attention."""
    parts = Parts(config, FAMILY, partial_rotary_factor=0.5)
    parts.names = Names(norm="final_layernorm", before=("input_layernorm", "pre_ff_layernorm"))
    if (rotary := config.size("attn_rotary_emb", parts.rope.rotary_dim)) != parts.rope.rotary_dim:
        raise config.refuse(f"attn_rotary_emb = {rotary}, not the half of a head: {parts.rope.rotary_dim}")
    attends, bias = config.counts("attn_layer_indices"), config.flag("mamba_proj_bias", False)
    inner = int(config.positive("mamba_expand", 2) * parts.hidden_size)
    sizes = scan_sizes(config, inner, ScanKeys())

    def mixer(index: int, at: str) -> Block:
        if index in attends:
            return parts.attention(f"{at}.self_attn")
        return ScanMixer.of(f"{at}.mamba", parts.hidden_size, sizes, parts.eps, bias=bias, out_bias=bias)

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, at), parts.mlp(f"{at}.feed_forward"))

    return parts.decoder(layer)

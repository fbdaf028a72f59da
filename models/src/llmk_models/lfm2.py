"""LFM2: gated short convolutions in most layers, attention in the others, experts in the MoE variant
(arXiv:2511.23404)."""

from __future__ import annotations

from llmk.api import MoEFacts
from llmk.tree import Block, CausalLM, Config, ConvMixer, GatedMLP, Linear, MoE, Residual, ShortConvSizes
from llmk.tree.config import MOST_EXPERTS
from llmk_models.parts import Family, Names, Parts

FAMILY = Family(num_kv_heads=8, rope_theta=1_000_000.0)
"""These and the following numbers are the defaults of transformers' config classes."""

_KINDS = {"conv": False, "full_attention": True}
_NAMES = "w1", "w3", "w2"


def tree(config: Config) -> CausalLM:
    """The tree of an LFM2 or LFM2-MoE checkpoint."""
    parts, sparse = Parts(config, FAMILY), config.architecture == "Lfm2MoeForCausalLM"
    parts.eps = parts.qk_norm = config.number("norm_eps", 1e-5)
    parts.names = Names(norm="embedding_norm", before=("operator_norm", "ffn_norm"))
    parts.tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
    hidden, inner = parts.hidden_size, parts.inner_size if sparse else _width(config, parts.inner_size)
    kernel, bias = config.size("conv_L_cache", 3), config.flag("conv_bias", False)
    sizes, attends = ShortConvSizes(channels=hidden, conv_kernel=kernel, conv_bias=bias), _attends(config, parts)
    first = config.count("num_dense_layers", 2) if sparse else parts.num_layers
    experts = MoEFacts(
        site="moe",
        num_experts=config.size("num_experts", 32, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 4),
        hidden_size=hidden,
        intermediate_size=config.size("moe_intermediate_size", 1792),
        renormalize=config.flag("norm_topk_prob", True),
        scoring="sigmoid",
        scaling=config.number("routed_scaling_factor", 1.0),
        selection_bias=config.flag("use_expert_bias", True),
    )

    def mixer(index: int, at: str) -> Block:
        if not attends[index]:
            return ConvMixer.of(f"{at}.conv", hidden, sizes)
        names = "q_proj", "k_proj", "v_proj", "out_proj"
        return parts.attention(f"{at}.self_attn", names=names, norm_names=("q_layernorm", "k_layernorm"))

    def feed_forward(index: int, at: str) -> Block:
        if index >= first:
            return MoE.of(at, experts, names=_NAMES, selection_bias="expert_bias")
        gate_up = Linear.packed(f"{at}.gate_up", "gate_up", hidden, _NAMES[:2], (inner, inner))
        return GatedMLP(at=at, gate_up=gate_up, down=Linear.row(f"{at}.w2", "down", inner, hidden))

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, at), feed_forward(index, f"{at}.feed_forward"))

    return parts.decoder(layer)


def _width(config: Config, inner: int) -> int:
    """The width of MLPs, which dense checkpoints state before it is adjusted."""
    stated = inner = config.size("block_ff_dim", inner)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return inner
    unit, factor = (
        config.size("block_multiple_of", 256),
        config.nullable(config.positive, "block_ffn_dim_multiplier", 1.0),
    )
    inner = 2 * stated // 3 if factor is None else -(-int(factor * (2 * stated // 3)) // unit) * unit
    if not inner:
        raise config.refuse(f"MLPs of a width of {stated}, of which adjusting leaves nothing")
    return inner


def _attends(config: Config, parts: Parts) -> tuple[bool, ...]:
    """Which layers have attention. Raises CheckpointError."""
    layers = range(parts.num_layers)
    indices = config.counts("full_attn_idxs") if config.values.get("full_attn_idxs") is not None else layers
    kinds = config.texts("layer_types") or tuple("full_attention" if i in indices else "conv" for i in layers)
    if len(kinds) != parts.num_layers or set(kinds) - set(_KINDS):
        found = ", ".join(sorted(set(kinds)))
        raise config.refuse(f"num_hidden_layers = {parts.num_layers} and layer_types of {len(kinds)} layers: {found}")
    return tuple(_KINDS[kind] for kind in kinds)

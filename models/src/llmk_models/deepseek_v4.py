"""DeepSeek-V4: several residual streams, attention to the last tokens and to entries that stand for groups of earlier
ones, and experts that a table names for each token id in the first layers."""

from __future__ import annotations

from typing import Any

from llmk.api import MoEFacts
from llmk.tree import (
    Block,
    Carried,
    CausalLM,
    CompressedAttention,
    CompressedShape,
    Config,
    Rope,
    Spec,
)
from llmk.tree.config import MOST_EXPERTS
from llmk_models.hyper_connections import HyperResidual, HyperStream, StreamShares
from llmk_models.parts import Family, Names, Parts, with_values
from llmk_models.token_experts import TokenExperts

FAMILY = Family(num_kv_heads=1, head_dim=512)
"""These and the following numbers are the defaults of transformers' config class."""
_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_RATES = {_SPARSE: 4, _HEAVY: 128}
_KINDS = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}
"""The kinds of layers by the rates that the authors' config has."""
_HASH_LAYERS = 3
_SERVED: dict[str, tuple[Any, ...]] = {
    "scoring_func": ("sqrtsoftplus",),
    "norm_topk_prob": (True,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "n_shared_experts": (1,),
    "hidden_act": ("silu", "swish"),
}


def tree(config: Config) -> CausalLM:
    """The tree of a DeepSeek-V4 checkpoint, with the names of its authors or of transformers. The layers that predict
    further tokens (MTP) are not used."""
    for key, served in _SERVED.items():
        config.choice(key, *served)
    inner = config.size("moe_intermediate_size", 2048)
    parts = Parts(with_values(config, intermediate_size=inner), FAMILY, kind="main")
    ropes = _ropes(config, parts)
    parts.rope = ropes[_HEAVY]
    parts.names = _names(config)
    shape = _shape(config, parts)
    kinds, hashed = _kinds(config, parts.num_layers)
    rates = _rates(config)
    count, floor = config.size("hc_mult", 4), config.number("hc_eps", 1e-6)
    shares: dict[str, Any] = {"streams": count, "size": parts.hidden_size, "eps": parts.eps}

    def residual(at: str, name: str, block: Block) -> HyperResidual:
        return HyperResidual(
            at=at,
            shares=StreamShares(at=f"{at}.hc_{name}", outputs=(count, count, count**2), **shares),
            norm=parts.norm(f"{at}.{name}_norm", "rms_norm"),
            block=block,
            reads_tokens=isinstance(block, TokenExperts),
            iterations=config.size("hc_sinkhorn_iters", 20),
            floor=floor,
        )

    def layer(index: int, at: str) -> tuple[Spec, ...]:
        own: dict[str, Any] = {"rate": rates.get(kinds[index], 0), "picks": kinds[index] == _SPARSE}
        attention = CompressedAttention.of(f"{at}.attn", shape, ropes[kinds[index]], **own)
        experts = _experts(parts, f"{at}.ffn", hashed=hashed[index])
        return residual(at, "attn", attention), residual(at, "ffn", experts)

    head = f"{parts.names.model}.hc_head.hc" if parts.names.model else "hc_head"
    end = StreamShares(at=head, outputs=(count,), **shares)
    carried = (Carried(count * parts.hidden_size), Carried(1, "int64"))
    stream = HyperStream(carried=carried, reads_tokens=True, shares=end, floor=floor)
    return parts.decoder(layer, stream=stream, ignored=(r"(model\.)?mtp\..*",))


def _names(config: Config) -> Names:
    """Those of the authors, whose config has rates of layers, or those that transformers writes."""
    usual: dict[str, Any] = {"head": "head", "before": ("attn_norm", "ffn_norm")}
    return Names(model="", embed="embed", **usual) if "compress_ratios" in config.values else Names(**usual)


def _shape(config: Config, parts: Parts) -> CompressedShape:
    heads, groups = parts.heads, config.size("o_groups", 8)
    if heads.count % groups:
        raise config.refuse(f"num_attention_heads = {heads.count} and o_groups = {groups}, which does not divide them")
    return CompressedShape(
        hidden_size=parts.hidden_size,
        num_heads=heads.count,
        head_dim=heads.dim,
        q_rank=config.size("q_lora_rank", 1024),
        out_groups=groups,
        out_rank=config.size("o_lora_rank", 1024),
        window=config.size("sliding_window", 128),
        eps=parts.eps,
        index_heads=config.size("index_n_heads", 64),
        index_dim=config.size("index_head_dim", 128),
        index_top_k=config.size("index_topk", 512),
    )


def _ropes(config: Config, parts: Parts) -> dict[str, Rope]:
    """By the kind of layer. Those with groups have an angle of their own, and what extends the context."""
    stated = config.rope("rope_parameters") or config.rope("rope_scaling")
    by_kind = isinstance(stated.get("compress"), dict)
    rotated = config.size("qk_rope_head_dim", 64) / parts.heads.dim
    own = {"rope_type": "default", "partial_rotary_factor": config.positive("partial_rotary_factor", rotated)}
    main = {"rope_theta": config.positive("rope_theta", 10_000.0)}
    far = {**({} if by_kind else stated), "rope_theta": config.positive("compress_rope_theta", 160_000.0)}
    far |= {"rope_type": far.pop("type", far.get("rope_type", "default"))}
    found = {"main": own | main, "compress": own | far}
    if by_kind:
        found = {kind: own | stated[kind] for kind in found}
    if found["compress"]["rope_type"] == "yarn":
        found["compress"].setdefault("attention_factor", 1.0)
    positions = config.size("max_position_embeddings")
    main_rope, compress = (Rope.with_settings(parts.heads.dim, positions, found[kind]) for kind in found)
    return {_SLIDING: main_rope, _SPARSE: compress, _HEAVY: compress}


def _rates(config: Config) -> dict[str, int]:
    """Tokens of a group by the kind of layer. Raises CheckpointError."""
    stated = config.values.get("compress_rates")
    if stated is not None and not isinstance(stated, dict):
        raise config.refuse(f"compress_rates = {stated!r}, which is not an object")
    inner = with_values(config, **(stated or {}))
    return {kind: inner.size(kind, rate) for kind, rate in _RATES.items()}


def _kinds(config: Config, count: int) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """The kind of each layer's attention, and whether a table names its experts. Raises CheckpointError."""
    usual = (_HEAVY, _HEAVY, *([_HEAVY, _SPARSE] * count))
    rates = tuple(_KINDS.get(rate, str(rate)) for rate in config.counts("compress_ratios"))
    kinds = (config.texts("layer_types") or rates or usual)[:count]
    hash_layers = config.count("num_hash_layers", _HASH_LAYERS)
    experts = config.texts("mlp_layer_types") or tuple("hash_moe" if i < hash_layers else "moe" for i in range(count))
    if len(kinds) != count or set(kinds) - set(_KINDS.values()):
        raise config.refuse(f"{count} layers, and these kinds of attention: {', '.join(kinds)}")
    if len(experts[:count]) != count or set(experts) - {"hash_moe", "moe"}:
        raise config.refuse(f"{count} layers, and these kinds of experts: {', '.join(experts)}")
    return kinds, tuple(kind == "hash_moe" for kind in experts[:count])


def _experts(parts: Parts, at: str, *, hashed: bool) -> TokenExperts:
    config = parts.config
    facts = MoEFacts(
        site="moe",
        num_experts=config.size("n_routed_experts", 256, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 6),
        hidden_size=parts.hidden_size,
        intermediate_size=parts.inner_size,
        renormalize=False,
        scaling=config.number("routed_scaling_factor", 1.5),
        activation_limit=config.positive("swiglu_limit", 10.0),
    )
    return TokenExperts.of(at, facts, vocab_size=parts.vocab_size if hashed else 0)

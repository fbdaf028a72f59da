"""Nemotron-H: each layer is one block, Mamba-2, attention without rotation, an MLP (arXiv:2504.03624), or in Nemotron 3
experts without gates."""

from __future__ import annotations

from typing import Any

from llmk.api import MoEFacts
from llmk.tree import (
    MLP,
    Block,
    CausalLM,
    Config,
    Embedding,
    Head,
    Heads,
    MoE,
    Norm,
    Residual,
    ScanMixer,
    SelfAttention,
)
from llmk.tree.config import MOST_EXPERTS
from llmk_models.state_space import ScanKeys, scan_sizes

KEYS = ScanKeys("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "use_conv_bias")
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kinds of layers, as ``hybrid_override_pattern`` has them."""
_KIND_KEYS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
_PRESENT = {"linear_attention": "mamba", "full_attention": "attention"}
"""Those that transformers names otherwise since version 5."""


def tree(config: Config) -> CausalLM:
    """The tree of a Nemotron-H checkpoint; numbers are the defaults of transformers' config class. The heads that
    predict several tokens at once (``mtp``) are not used."""
    hidden, vocab = config.size("hidden_size", 4096), config.size("vocab_size", 131072)
    eps, bias = config.number("layer_norm_epsilon", 1e-5), config.flag("use_bias", False)
    for key, value in (("mamba_hidden_act", "silu"), ("mlp_hidden_act", "relu2"), ("sliding_window", None)):
        config.choice(key, value)
    inner = config.size(KEYS.heads, 128) * config.size(KEYS.head_dim, 64)
    sizes = scan_sizes(config, inner, KEYS, head_dim=64, groups=8, state=128)
    heads = Heads.of(config, kv=8, dim=config.size("attention_head_dim", 128))
    kinds, tied = _kinds(config), config.flag("tie_word_embeddings", False)
    widths = _widths(config, kinds.count("mlp"))

    def mixer(index: int, at: str) -> Block:
        if kinds[index] == "mamba":
            return ScanMixer.of(at, hidden, sizes, eps, bias=bias, out_bias=bias)
        if kinds[index] == "attention":
            return SelfAttention.of(at, hidden, heads, None, bias=config.choice("attention_bias", False))
        if kinds[index] == "moe":
            return _experts(config, at, hidden)
        return MLP.of(at, hidden, widths[kinds[:index].count("mlp")], "relu2", bias=config.flag("mlp_bias", False))

    def layer(index: int) -> tuple[Residual, ...]:
        at = f"backbone.layers.{index}"
        return (Residual(norm=Norm(at=f"{at}.norm", size=hidden, eps=eps), block=mixer(index, f"{at}.mixer")),)

    aliases = ("lm_head.weight",) if tied else ()
    return CausalLM(
        embed=Embedding(at="backbone.embeddings", vocab_size=vocab, size=hidden, aliases=aliases),
        layers=tuple(layer(index) for index in range(len(kinds))),
        norm=Norm(at="backbone.norm_f", size=hidden, eps=eps),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied),
        max_model_len=config.size("max_position_embeddings", 4096),
        residual_dtype="float32" if config.flag("residual_in_fp32", False) else "",
        ignored=(r"mtp\..*",),
    )


def _kinds(config: Config) -> list[str]:
    """The kind of each layer. Raises CheckpointError."""
    kinds: tuple[str, ...] = tuple(config.text("hybrid_override_pattern", ""))
    kinds = config.texts("layers_block_type") or config.texts("layer_types") or kinds
    kinds = tuple(_PATTERN.get(kind, _PRESENT.get(kind, kind)) for kind in kinds)
    for kind in sorted(set(kinds) - {*_PATTERN.values()}):
        raise config.unsupported(
            f"layers of kind {kind!r}: the native implementation has {', '.join(_PATTERN.values())}"
        )
    if not kinds or len(kinds) != config.size("num_hidden_layers", len(kinds)):
        stated = config.values.get("num_hidden_layers")
        named = " or ".join(key for key in _KIND_KEYS if config.values.get(key)) or " or ".join(_KIND_KEYS)
        raise config.refuse(f"num_hidden_layers = {stated}, but {named} of {len(kinds)} layers")
    return list(kinds)


def _experts(config: Config, at: str, hidden: int) -> MoE:
    """Experts without gates, chosen by sigmoid scores with a bias, which may work in a narrower space; and an MLP for
    every token."""
    latent = config.nullable(config.size, "moe_latent_size", None)
    if latent:
        config.choice("mlp_bias", False)  # ranks sum what the second projection returns, which would add a bias by each
    facts = MoEFacts(
        site="moe",
        num_experts=config.size("n_routed_experts", 8, most=MOST_EXPERTS),
        top_k=config.size("num_experts_per_tok", 2),
        hidden_size=latent or hidden,
        intermediate_size=config.size("moe_intermediate_size", 7688),
        activation="relu2",
        gated=False,
        renormalize=config.flag("norm_topk_prob", True),
        scoring="sigmoid",
        selection_bias=True,
        scaling=config.number("routed_scaling_factor", 1.0),
        num_groups=config.size("n_group", 1),
        top_groups=config.size("topk_group", 1),
        group_scoring="top2_sum",
    )
    width, bias = config.size("moe_shared_expert_intermediate_size", 7688), config.flag("mlp_bias", False)
    own: dict[str, Any] = {"bias": bias, "prefix": "shared_", "partial": True}
    return MoE.of(
        at,
        facts,
        names=("up_proj", "down_proj"),
        latent=("fc1_latent_proj", "fc2_latent_proj") if latent else (),
        hidden_size=hidden,
        shared=MLP.of(f"{at}.shared_experts", hidden, width, "relu2", **own),
    )


def _widths(config: Config, count: int) -> tuple[int, ...]:
    """The width of each MLP: a list in pruned models."""
    key = "intermediate_size"
    if not isinstance(config.values.get(key), list):
        return (config.size(key, 21504),) * count
    widths = config.counts(key)
    widths = widths * count if len(widths) == 1 else widths
    if len(widths) != count or 0 in widths:
        raise config.refuse(f"{key} of {len(widths)} MLPs, but {count} layers with one")
    return widths

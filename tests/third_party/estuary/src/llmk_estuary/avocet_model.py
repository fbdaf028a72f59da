"""AFMoE, the family of Arcee's Trinity models: windows with rotation in most layers and full attention without it in
the others, a gate for each element of attention's output, norms before and after each block, dense layers first and
experts scored by sigmoids after them, embeddings with muP's factor. A tree of specs, which imports no torch.
"""

from __future__ import annotations

from functools import partial

from llmk.api import MoEFacts
from llmk.tree import (
    Block,
    CausalLM,
    Config,
    Embedding,
    GatedMLP,
    Head,
    Heads,
    MoE,
    Norm,
    Residual,
    Rope,
    SelfAttention,
)
from llmk.tree.config import MOST_EXPERTS

_WINDOW, _FULL = "sliding_attention", "full_attention"


def tree(config: Config) -> CausalLM:
    """AFMoE. Keys that the config leaves out have the defaults of transformers. Raises CheckpointError, which names the
    key, for what the model does not support."""
    config.choice("hidden_act", "silu")
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    heads = Heads.of(config, dim=128)
    rope = Rope.of(config, heads.dim)
    if rope.rotary_dim != heads.dim:
        raise config.unsupported(f"a partial_rotary_factor that rotates {rope.rotary_dim} of {heads.dim} elements")
    eps, bias = config.number("rms_norm_eps", 1e-5), config.flag("attention_bias", False)
    tied = config.flag("tie_word_embeddings", False)
    num_layers = config.num_layers("num_hidden_layers")
    kinds = layer_kinds(config, num_layers)
    window = config.nullable(config.size, "sliding_window", 1024)
    if window is None and _WINDOW in kinds:
        raise config.refuse(f"layers of {_WINDOW}, but no sliding_window")
    dense = config.count("num_dense_layers", 1)
    norm = partial(Norm, size=hidden, eps=eps)

    def attention(at: str, kind: str) -> Block:
        turned, span = (rope, window) if kind == _WINDOW else (None, None)
        block = SelfAttention.of(at, hidden, heads, turned, bias=bias, window=span, qk_norm=eps)
        return block.gated_by(f"{at}.gate_proj", hidden)

    def layer(index: int) -> tuple[Residual, ...]:
        at = f"model.layers.{index}"
        feed_forward = (
            experts(config, f"{at}.mlp", hidden) if index >= dense else dense_mlp(config, f"{at}.mlp", hidden)
        )
        return (
            Residual(
                norm=norm(at=f"{at}.input_layernorm"),
                block=attention(f"{at}.self_attn", kinds[index]),
                post=norm(at=f"{at}.post_attention_layernorm"),
            ),
            Residual(
                norm=norm(at=f"{at}.pre_mlp_layernorm"),
                block=feed_forward,
                post=norm(at=f"{at}.post_mlp_layernorm"),
            ),
        )

    return CausalLM(
        embed=Embedding(
            at="model.embed_tokens",
            vocab_size=vocab,
            size=hidden,
            scale=hidden**0.5 if config.flag("mup_enabled", False) else None,
            scale_given=True,
            aliases=("lm_head.weight",) if tied else (),
        ),
        layers=tuple(layer(index) for index in range(num_layers)),
        norm=norm(at="model.norm"),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied),
        max_model_len=rope.max_model_len,
    )


def layer_kinds(config: Config, num_layers: int) -> tuple[str, ...]:
    """The kind of each layer: as the config lists them, or every so many layers one with full attention."""
    kinds = config.texts("layer_types")
    if not kinds:
        every = config.size("global_attn_every_n_layers", 4)
        return tuple(_WINDOW if (index + 1) % every else _FULL for index in range(num_layers))
    if len(kinds) != num_layers:
        raise config.refuse(f"{len(kinds)} layer_types, but num_hidden_layers = {num_layers}")
    if unknown := set(kinds) - {_WINDOW, _FULL}:
        raise config.unsupported(f"layer_types of {', '.join(sorted(unknown))}")
    return kinds


def dense_mlp(config: Config, at: str, hidden: int) -> GatedMLP:
    """The MLP of the first layers."""
    return GatedMLP.of(at, hidden, config.size("intermediate_size"))


def experts(config: Config, at: str, hidden: int) -> MoE:
    """Experts chosen by biased scores, and shared experts, which are one MLP."""
    count, top_k = config.size("num_experts", 64, most=MOST_EXPERTS), config.size("num_experts_per_tok", 6)
    if top_k > count:
        raise config.refuse(f"num_experts_per_tok = {top_k}, but num_experts = {count}")
    inner, shared = config.size("moe_intermediate_size", 1408), config.count("num_shared_experts", 2)
    if not shared:
        raise config.unsupported("num_shared_experts = 0")
    facts = MoEFacts(
        site="moe",
        num_experts=count,
        top_k=top_k,
        hidden_size=hidden,
        intermediate_size=inner,
        scoring="sigmoid",
        scaling=config.number("route_scale", 1.0),
        selection_bias=True,
    )
    mlp = GatedMLP.of(f"{at}.shared_experts", hidden, inner * shared, prefix="shared_", partial=True)
    return MoE.of(at, facts, router="router.gate", selection_bias="expert_bias", shared=mlp)

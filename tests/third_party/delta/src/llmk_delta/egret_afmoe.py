"""AFMoE (Arcee's Trinity): a tree of specs, made of a checkpoint's ``config.json``. It imports no torch.

Blocks are normed before and after; most layers attend to a window and rotate, the others see everything and don't; the
output of attention has a gate; behind some dense layers, experts are scored by sigmoids, with shared experts beside.
"""

from __future__ import annotations

from functools import partial

from llmk.api import MoEFacts
from llmk.tree import CausalLM, Config, Embedding, GatedMLP, Head, Heads, MoE, Norm, Residual, Rope, SelfAttention

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"


def tree(config: Config) -> CausalLM:
    """AFMoE. Keys that the config leaves out have the defaults of transformers. Raises CheckpointError, which names the
    key, for what the model does not support."""
    config.choice("hidden_act", "silu")
    hidden, vocab = config.size("hidden_size", 2048), config.size("vocab_size", 200192)
    heads = Heads.of(config, dim=128)
    rope = Rope.of(config, heads.dim)
    tied = config.flag("tie_word_embeddings", False)
    eps = config.number("rms_norm_eps", 1e-5)
    norm = partial(Norm, size=hidden, eps=eps)
    bias = config.flag("attention_bias", False)
    window = config.nullable(config.size, "sliding_window", 1024)
    kinds = _kinds(config)
    dense_layers = config.count("num_dense_layers", 1)
    dense_size = config.size("intermediate_size", 6144)
    experts = _experts(config, hidden) if dense_layers < len(kinds) else None
    shared_size = config.size("num_shared_experts", 2) * config.size("moe_intermediate_size", 1408)

    def attention(at: str, kind: str) -> SelfAttention:
        windowed = kind == _WINDOWED
        block = SelfAttention.of(
            at,
            hidden,
            heads,
            rope if windowed else None,
            bias=bias,
            window=window if windowed else None,
            qk_norm=eps,
        )
        return block.gated_by(f"{at}.gate_proj", hidden)

    def feed_forward(at: str, index: int) -> GatedMLP | MoE:
        if experts is None or index < dense_layers:
            return GatedMLP.of(at, hidden, dense_size)
        shared = GatedMLP.of(f"{at}.shared_experts", hidden, shared_size, prefix="shared_", partial=True)
        return MoE.of(at, experts, router="router.gate", selection_bias="expert_bias", shared=shared)

    def layer(at: str, index: int) -> tuple[Residual, ...]:
        return (
            Residual(
                norm=norm(at=f"{at}.input_layernorm"),
                block=attention(f"{at}.self_attn", kinds[index]),
                post=norm(at=f"{at}.post_attention_layernorm"),
            ),
            Residual(
                norm=norm(at=f"{at}.pre_mlp_layernorm"),
                block=feed_forward(f"{at}.mlp", index),
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
        layers=tuple(layer(f"model.layers.{index}", index) for index in range(len(kinds))),
        norm=norm(at="model.norm"),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied),
        max_model_len=rope.max_model_len,
    )


def _kinds(config: Config) -> tuple[str, ...]:
    """What each layer attends to: as ``layer_types`` says, or everything in every n-th layer."""
    count = config.size("num_hidden_layers", 32, most=10_000)
    period = config.size("global_attn_every_n_layers", 4)
    kinds = config.texts("layer_types") or tuple(
        _WINDOWED if (index + 1) % period else _WHOLE for index in range(count)
    )
    if len(kinds) != count:
        raise config.refuse(f"layer_types has {len(kinds)} entries for num_hidden_layers = {count}")
    unknown = sorted({kind for kind in kinds if kind not in (_WINDOWED, _WHOLE)})
    if unknown:
        raise config.unsupported(f"layer_types has {unknown[0]!r}")
    return kinds


def _experts(config: Config, hidden: int) -> MoEFacts:
    """The routed experts, of which each token uses those with the best biased scores."""
    count, chosen = config.size("num_experts", 64), config.size("num_experts_per_tok", 6)
    if chosen > count:
        raise config.refuse(f"num_experts_per_tok = {chosen} is more than num_experts = {count}")
    return MoEFacts(
        site="experts",
        num_experts=count,
        top_k=chosen,
        hidden_size=hidden,
        intermediate_size=config.size("moe_intermediate_size", 1408),
        scoring="sigmoid",
        scaling=config.number("route_scale", 1.0),
        selection_bias=True,
    )

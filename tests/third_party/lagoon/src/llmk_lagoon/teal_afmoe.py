"""AFMoE (Arcee Trinity): a tree of specs, made of a checkpoint's ``config.json``. It imports no torch.

Most layers attend to a window, with rotation; the others to all tokens, without any. Attention has a gate, and each
block a norm before and after it. All layers but the first have experts, chosen by sigmoid scores with a bias, next to
shared ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from llmk.api import MoEFacts
from llmk.tree import CausalLM, Config, Embedding, GatedMLP, Head, Heads, MoE, Norm, Residual, Rope, SelfAttention

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def tree(config: Config) -> CausalLM:
    """AFMoE. Keys that the config leaves out have the defaults of transformers. Raises CheckpointError, which names the
    key, for what the model does not support."""
    config.choice("hidden_act", "silu")
    # Keys of configs that Arcee published, which transformers does not read.
    config.choice("score_func", "sigmoid")
    config.choice("route_norm", True)
    config.choice("n_group", 1)
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    inner, num_dense = config.size("intermediate_size"), config.count("num_dense_layers", 1)
    heads = Heads.of(config, dim=128)
    rope = Rope.of(config, heads.dim)
    eps = config.positive("rms_norm_eps", 1e-5)
    bias, tied = config.flag("attention_bias", False), config.flag("tie_word_embeddings", False)
    window = config.size("sliding_window", 1024)
    num_layers = config.num_layers("num_hidden_layers")
    kinds = _layer_kinds(config, num_layers)
    norm = partial(Norm, size=hidden, eps=eps)

    def attention(at: str, kind: str) -> SelfAttention:
        local = kind == _LOCAL
        block = SelfAttention.of(
            *(at, hidden, heads, rope if local else None),
            bias=bias,
            window=window if local else None,
            qk_norm=eps,
        )
        return block.gated_by(f"{at}.gate_proj", hidden)

    def layer(index: int) -> tuple[Residual, ...]:
        at = f"model.layers.{index}"
        mlp = _experts(config, f"{at}.mlp") if index >= num_dense else GatedMLP.of(f"{at}.mlp", hidden, inner)
        return (
            Residual(
                norm=norm(at=f"{at}.input_layernorm"),
                block=attention(f"{at}.self_attn", kinds[index]),
                post=norm(at=f"{at}.post_attention_layernorm"),
            ),
            Residual(norm=norm(at=f"{at}.pre_mlp_layernorm"), block=mlp, post=norm(at=f"{at}.post_mlp_layernorm")),
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


def _layer_kinds(config: Config, num_layers: int) -> Sequence[str]:
    """How each layer attends: as the config says layer by layer, or to all tokens in every so many-th layer."""
    kinds = config.texts("layer_types")
    if not kinds:
        period = config.size("global_attn_every_n_layers", 4)
        return [_LOCAL if (index + 1) % period else _GLOBAL for index in range(num_layers)]
    if len(kinds) != num_layers:
        raise config.refuse(f"layer_types has {len(kinds)} entries for {num_layers} layers")
    for kind in kinds:
        if kind not in (_LOCAL, _GLOBAL):
            raise config.unsupported(f"layer_types has {kind!r}; this family has {_LOCAL!r} and {_GLOBAL!r}")
    return kinds


def _experts(config: Config, at: str) -> MoE:
    """Routed and shared experts. The shared ones are stored as one MLP that is as wide as all of them."""
    hidden, inner = config.size("hidden_size"), config.size("moe_intermediate_size")
    facts = MoEFacts(
        site="experts",
        num_experts=config.size("num_experts", 64),
        top_k=config.size("num_experts_per_tok", 6),
        hidden_size=hidden,
        intermediate_size=inner,
        scoring="sigmoid",
        scaling=config.number("route_scale", 1.0),
        selection_bias=True,
    )
    if facts.top_k > facts.num_experts:
        raise config.refuse(f"num_experts_per_tok = {facts.top_k} is more than num_experts = {facts.num_experts}")
    width = inner * config.size("num_shared_experts", 2)
    shared = GatedMLP.of(f"{at}.shared_experts", hidden, width, prefix="shared_", partial=True)
    return MoE.of(at, facts, router="router.gate", selection_bias="expert_bias", shared=shared)

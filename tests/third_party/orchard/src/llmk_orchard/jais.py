"""Jais 2: layers as Llama's, with LayerNorm, an MLP without a gate, and biases. It imports no torch."""

from __future__ import annotations

from functools import partial

from llmk.tree import MLP, CausalLM, Config, Embedding, Head, Heads, Norm, Residual, Rope, SelfAttention


def tree(config: Config) -> CausalLM:
    """The tree of a checkpoint. Raises CheckpointError, which names the key, for what is not supported."""
    activation = config.choice("hidden_act", "relu2")
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    inner = config.size("intermediate_size")
    heads = Heads.of(config)
    rope = Rope.of(config, heads.dim)
    bias, mlp_bias = config.flag("attention_bias", True), config.flag("mlp_bias", True)
    tied = config.flag("tie_word_embeddings", False)
    norm = partial(Norm, size=hidden, eps=config.number("layer_norm_eps", 1e-5), centered=True, bias=True)

    def layer(at: str) -> tuple[Residual, ...]:
        attention = SelfAttention.of(f"{at}.self_attn", hidden, heads, rope, bias=bias)
        mlp = MLP.of(f"{at}.mlp", hidden, inner, activation, bias=mlp_bias)
        return (
            Residual(norm=norm(at=f"{at}.input_layernorm"), block=attention),
            Residual(norm=norm(at=f"{at}.post_attention_layernorm"), block=mlp),
        )

    return CausalLM(
        embed=Embedding(
            at="model.embed_tokens", vocab_size=vocab, size=hidden, aliases=("lm_head.weight",) if tied else ()
        ),
        layers=tuple(layer(f"model.layers.{index}") for index in range(config.num_layers("num_hidden_layers"))),
        norm=norm(at="model.norm"),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied),
        max_model_len=rope.max_model_len,
    )

"""What the model is: a tree of specs, made of a checkpoint's ``config.json``. It imports no torch."""

from __future__ import annotations

from functools import partial

from llmk.tree import CausalLM, Config, Embedding, GatedMLP, Head, Heads, Norm, Residual, Rope, SelfAttention


def tree(config: Config) -> CausalLM:
    """Seed-OSS. Keys that the config leaves out have the defaults of transformers. Raises CheckpointError, which names
    the key, for what the model does not support."""
    config.choice("hidden_act", "silu")
    hidden, inner, vocab = config.size("hidden_size"), config.size("intermediate_size"), config.size("vocab_size")
    heads = Heads.of(config, kv=8, dim=128)
    rope = Rope.of(config, heads.dim)
    bias, out_bias = config.flag("attention_bias", True), config.flag("attention_out_bias", False)
    mlp_bias, tied = config.flag("mlp_bias", False), config.flag("tie_word_embeddings", False)
    norm = partial(Norm, size=hidden, eps=config.number("rms_norm_eps", 1e-6))

    def layer(at: str) -> tuple[Residual, ...]:
        attention = SelfAttention.of(f"{at}.self_attn", hidden, heads, rope, bias=bias, out_bias=out_bias)
        mlp = GatedMLP.of(f"{at}.mlp", hidden, inner, bias=mlp_bias)
        return (
            Residual(norm=norm(at=f"{at}.input_layernorm"), block=attention),
            Residual(norm=norm(at=f"{at}.post_attention_layernorm"), block=mlp),
        )

    aliases = ("lm_head.weight",) if tied else ()
    return CausalLM(
        embed=Embedding(at="model.embed_tokens", vocab_size=vocab, size=hidden, aliases=aliases),
        layers=tuple(layer(f"model.layers.{index}") for index in range(config.num_layers("num_hidden_layers"))),
        norm=norm(at="model.norm"),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied),
        max_model_len=rope.max_model_len,
    )

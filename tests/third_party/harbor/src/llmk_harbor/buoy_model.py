"""HyperCLOVA X as a tree of specs. It imports no torch.

Granite's architecture with factors after the maximal update parametrization (muP), and a norm after each block too
(peri-norm), whose result is multiplied by the residual factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from llmk.tree import (
    Block,
    CausalLM,
    Config,
    Embedding,
    GatedMLP,
    Head,
    Heads,
    Norm,
    Residual,
    Rope,
    SelfAttention,
    default_length,
)

_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriNormed(Block):
    """``norm(block(x))``: for blocks whose normed output has a factor, which no op of the core spans. ``norm`` has a
    role."""

    implementation: ClassVar[str] = "llmk_harbor.buoy_peri_norm:PeriNormed"

    block: Block
    norm: Norm

    @property
    def is_token_wise(self) -> bool:
        return self.block.is_token_wise


def tree(config: Config) -> CausalLM:
    """HyperCLOVA X. Keys that the config leaves out have the defaults of transformers. Raises CheckpointError, which
    names the key, for what the model does not support."""
    activation = _ACTIVATIONS[config.choice("hidden_act", *_ACTIVATIONS)]
    hidden, inner, vocab = config.size("hidden_size"), config.size("intermediate_size"), config.size("vocab_size")
    heads = Heads.of(config)
    if hidden % heads.count:
        raise config.refuse(f"hidden_size = {hidden}, not a multiple of num_attention_heads = {heads.count}")
    rope = Rope.of(config, heads.dim)
    if rope.rotary_dim != heads.dim:
        raise config.unsupported("partial_rotary_factor: heads are rotated as a whole")
    bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    peri_norm, tied = config.flag("use_post_norm", True), config.flag("tie_word_embeddings", False)
    scale, factor = config.number("attention_multiplier", None), config.number("residual_multiplier", 1.0)
    norm = partial(Norm, size=hidden, eps=config.number("rms_norm_eps", 1e-6))

    def residual(before: str, block: Block, after: str) -> Residual:
        first = norm(at=before)
        if not peri_norm:
            return Residual(norm=first, block=block, scale=factor)
        if factor == 1.0:
            return Residual(norm=first, block=block, post=norm(at=after))
        normed = PeriNormed(at=block.at, block=block, norm=norm(at=after, role="post_norm"))
        return Residual(norm=first, block=normed, scale=factor)

    def layer(at: str) -> tuple[Residual, ...]:
        attention = SelfAttention.of(f"{at}.self_attn", hidden, heads, rope, bias=bias, scale=scale)
        mlp = GatedMLP.of(f"{at}.mlp", hidden, inner, activation=activation, bias=mlp_bias)
        return (
            residual(f"{at}.input_layernorm", attention, f"{at}.post_norm1"),
            residual(f"{at}.post_attention_layernorm", mlp, f"{at}.post_norm2"),
        )

    default_len, why = default_length(config, rope.max_model_len)
    return CausalLM(
        embed=Embedding(
            at="model.embed_tokens",
            vocab_size=vocab,
            size=hidden,
            scale=config.number("embedding_multiplier", 1.0),
            scale_given=True,
            aliases=("lm_head.weight",) if tied else (),
        ),
        layers=tuple(layer(f"model.layers.{index}") for index in range(config.num_layers("num_hidden_layers"))),
        norm=norm(at="model.norm"),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied, scale=config.number("logits_scaling", 1.0)),
        max_model_len=rope.max_model_len,
        default_model_len=default_len,
        default_why=why,
    )

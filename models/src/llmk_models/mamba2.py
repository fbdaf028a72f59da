"""Mamba-2: a selective scan in every layer, and no attention (arXiv:2405.21060)."""

from __future__ import annotations

from math import inf

from llmk.tree import (
    CausalLM,
    Config,
    Embedding,
    Head,
    Norm,
    Residual,
    ScanMixer,
    StateSpaceSizes,
)

MAX_MODEL_LEN = 262_144
"""A checkpoint does not limit the length, and the state has a fixed size. Published models of the family were tested up
to this length (Codestral Mamba)."""
_HINT = "compare the checkpoint's config.json with the one that the model's authors publish"


def tree(config: Config) -> CausalLM:
    """The tree of a Mamba-2 checkpoint; defaults are those of transformers' config class."""
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    config.choice("hidden_act", "silu", "swish", hint=_HINT)
    sizes = _sizes(config, hidden)
    eps, bias = config.number("layer_norm_epsilon", 1e-5), config.flag("use_bias", False)
    tied, embed = config.flag("tie_word_embeddings", False), "backbone.embedding"

    def norm(at: str) -> Norm:
        return Norm(at=at, size=hidden, eps=eps)

    def layer(at: str) -> tuple[Residual, ...]:
        mixer = ScanMixer.of(f"{at}.mixer", hidden, sizes, eps, bias=bias, out_bias=bias)
        return (Residual(norm=norm(f"{at}.norm"), block=mixer),)

    # Checkpoints older than the family's support in transformers have the name in the singular.
    aliases = (f"{embed}.weight", *(("lm_head.weight",) if tied else ()))
    return CausalLM(
        embed=Embedding(at=f"{embed}s", vocab_size=vocab, size=hidden, aliases=aliases),
        layers=tuple(layer(f"backbone.layers.{index}") for index in range(config.num_layers("num_hidden_layers"))),
        norm=norm("backbone.norm_f"),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied),
        max_model_len=MAX_MODEL_LEN,
        residual_dtype="float32" if config.flag("residual_in_fp32", True) else "",
    )


def _sizes(config: Config, hidden: int) -> StateSpaceSizes:
    low, high = config.limits("time_step_limit", (0.0, inf))
    sizes = StateSpaceSizes(
        num_heads=config.size("num_heads", 128),
        head_dim=config.size("head_dim", 64),
        num_groups=config.size("n_groups", 8),
        state_size=config.size("state_size", 128),
        conv_kernel=config.size("conv_kernel", 4),
        conv_bias=config.flag("use_conv_bias", True),
        dt_limits=(low, None if high == inf else high),
    )
    if (inner := int(config.positive("expand", 2) * hidden)) != sizes.inner_size:
        raise config.refuse(f"expand * hidden_size = {inner}, but num_heads * head_dim = {sizes.inner_size}", _HINT)
    if sizes.num_heads % sizes.num_groups:
        problem = f"num_heads = {sizes.num_heads}, which n_groups = {sizes.num_groups} does not divide"
        raise config.refuse(problem, _HINT)
    return sizes

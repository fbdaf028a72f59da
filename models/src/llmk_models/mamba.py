"""Mamba and Falcon-Mamba: Mamba-1's scan in every layer, and no attention (arXiv:2312.00752, arXiv:2410.05355)."""

from __future__ import annotations

from typing import Any

from llmk.tree import CausalLM, Config, Embedding, Head, Norm, Residual, SelectiveMixer, SelectiveScanSizes

MAX_MODEL_LEN = 262_144
"""A checkpoint does not limit the length, and the state has a fixed size."""


def tree(config: Config) -> CausalLM:
    """The tree of a checkpoint; defaults are those of transformers' config classes. Falcon-Mamba norms what step sizes
    are projected from, and B and C, without weights."""
    hidden, vocab = config.size("hidden_size", 768), config.size("vocab_size", 50280)
    config.choice("hidden_act", "silu", "swish")
    state, eps = config.size("state_size", 16), config.number("layer_norm_epsilon", 1e-5)
    sizes = SelectiveScanSizes(
        channels=config.size("intermediate_size", int(config.positive("expand", 2) * hidden)),
        state_size=state,
        conv_kernel=config.size("conv_kernel", 4),
        conv_bias=config.flag("use_conv_bias", True),
    )
    auto = config.values.get("time_step_rank") == "auto"
    rank = -(-hidden // 16) if auto else config.size("time_step_rank", -(-hidden // 16))
    own, bias = config.architecture == "FalconMambaForCausalLM", config.flag("use_bias", False)
    inside: dict[str, Any] = {"eps": config.number("mixer_rms_eps", 1e-6), "weighted": False}
    norms = (
        Norm(role="scan_steps_norm", size=rank, **inside),
        Norm(role="scan_b_norm", size=state, **inside),
        Norm(role="scan_c_norm", size=state, **inside),
    )

    def layer(at: str) -> tuple[Residual, ...]:
        own_norms = norms if own else ()
        mixer = SelectiveMixer.of(f"{at}.mixer", hidden, rank, sizes, bias=bias, norms=own_norms)
        return (Residual(norm=Norm(at=f"{at}.norm", size=hidden, eps=eps), block=mixer),)

    tied, embed = config.flag("tie_word_embeddings", True), "backbone.embeddings"
    aliases = ("backbone.embedding.weight", *(("lm_head.weight",) if tied else ()))
    return CausalLM(
        embed=Embedding(at=embed, vocab_size=vocab, size=hidden, aliases=aliases),
        layers=tuple(layer(f"backbone.layers.{index}") for index in range(config.num_layers("num_hidden_layers"))),
        norm=Norm(at="backbone.norm_f", size=hidden, eps=eps),
        head=Head(at="lm_head", vocab_size=vocab, size=hidden, tied=tied),
        max_model_len=MAX_MODEL_LEN,
        residual_dtype="float32" if config.flag("residual_in_fp32", True) else "",
    )

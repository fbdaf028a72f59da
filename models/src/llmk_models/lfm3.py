"""LFM3: gated short convolutions, attention with and without windows and a gate per head, and norms before and after
each block."""

from __future__ import annotations

from llmk.tree import Block, CausalLM, Config, ConvMixer, GatedMLP, Linear, Residual, ShortConvSizes
from llmk_models.parts import Family, Names, Parts, with_values
from llmk_models.windows import FULL, SLIDING, sliding_rope

FAMILY = Family(
    bias_flags=("attention_bias",), num_kv_heads=4, head_dim=128, tied=True, eps_key="norm_eps", norm_eps=1e-5
)
"""These and the following values are the defaults of transformers' config class."""
_CONV = "conv"
_ROPE = {
    FULL: {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}


def tree(config: Config) -> CausalLM:
    """The tree of an LFM3 checkpoint."""
    config = config if config.rope("rope_parameters") else with_values(config, rope_parameters=_ROPE)
    parts = Parts(config, FAMILY, kind=FULL)
    parts.qk_norm = parts.eps
    parts.names = Names(norm="embedding_norm")
    kinds, hidden, inner = _kinds(config, parts.num_layers), parts.hidden_size, parts.inner_size
    kernel, bias = config.size("conv_L_cache", 7), config.flag("conv_bias", False)
    sizes = ShortConvSizes(channels=hidden, conv_kernel=kernel, conv_bias=bias)
    windows = {FULL: None, SLIDING: config.nullable(config.size, "sliding_window", 256)}
    ropes = {FULL: parts.rope, SLIDING: sliding_rope(config, parts.rope, 10_000.0)}
    gated, sandwich = config.flag("use_attention_gate", True), config.flag("use_sandwich_norm", True)

    def mixer(kind: str, at: str) -> Block:
        if kind == _CONV:
            return ConvMixer.of(f"{at}.conv", hidden, sizes)
        attention = parts.attention(f"{at}.self_attn", windows[kind], ropes[kind])
        return attention.gated_by(f"{at}.self_attn.gate_proj", hidden, per_head=True) if gated else attention

    def feed_forward(at: str) -> Block:
        gate_up = Linear.packed(f"{at}.gate_up", "gate_up", hidden, ("w1", "w3"), (inner, inner))
        return GatedMLP(at=at, gate_up=gate_up, down=Linear.row(f"{at}.w2", "down", inner, hidden))

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        blocks = {"operator_norm": mixer(kinds[index], at), "ffn_norm": feed_forward(f"{at}.feed_forward")}
        posts = (parts.norm(f"{at}.post_{name}") if sandwich else None for name in ("operator_norm", "ffn_norm"))
        pairs = zip(blocks.items(), posts, strict=True)
        return tuple(Residual(norm=parts.norm(f"{at}.{name}"), block=own, post=post) for (name, own), post in pairs)

    return parts.decoder(layer)


def _kinds(config: Config, num_layers: int) -> tuple[str, ...]:
    """The kind of each layer. Raises CheckpointError."""
    usual = tuple({2: FULL, 0: SLIDING if index else _CONV}.get(index % 4, _CONV) for index in range(num_layers))
    kinds = config.texts("layer_types") or usual
    if len(kinds) != num_layers or set(kinds) - {_CONV, FULL, SLIDING}:
        found = ", ".join(sorted(set(kinds)))
        raise config.refuse(f"num_hidden_layers = {num_layers} and layer_types of {len(kinds)} layers: {found}")
    return kinds

"""Shapes of models with recurrent layers, as :mod:`shapes` has those of Qwen3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shapes import BYTES, STATE_BYTES, Shape

Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Shape:
    """Mamba-2 with the convolution and the ratios of its published models."""

    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    head_dim: int = 64
    n_groups: int = 1
    state_size: int = 128
    conv_kernel: int = 4
    vocab_size: int = 50288
    first_special: int = 50285

    @property
    def inner_size(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return self.inner_size + 2 * self.n_groups * self.state_size

    @property
    def layer_params(self) -> int:
        """Of one layer's projections and convolution."""
        projected = self.inner_size + self.channels + self.num_heads
        return self.hidden_size * (projected + self.inner_size) + self.conv_kernel * self.channels

    def decode_bytes(self, batch: int, context: float) -> float:
        """As :meth:`shapes.Shape.decode_bytes`; states are read and written."""
        weights = BYTES * (self.num_hidden_layers * self.layer_params + self.vocab_size * self.hidden_size)
        state = STATE_BYTES * self.inner_size * self.state_size + BYTES * (self.conv_kernel - 1) * self.channels
        return weights + 2 * batch * self.num_hidden_layers * state

    def prefill_flops(self, tokens: int, context: int = 0) -> float:
        """As :meth:`shapes.Shape.prefill_flops`; a token is added to the state and read from it."""
        layer = 2 * self.layer_params + 6 * self.inner_size * self.state_size
        return self.num_hidden_layers * tokens * layer + 2 * self.vocab_size * self.hidden_size

    def config(self) -> dict[str, Any]:
        """``config.json``."""
        return {
            "architectures": ["Mamba2ForCausalLM"],
            "model_type": "mamba2",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "n_groups": self.n_groups,
            "state_size": self.state_size,
            "conv_kernel": self.conv_kernel,
            "expand": self.inner_size // self.hidden_size,
            "vocab_size": self.vocab_size,
            "chunk_size": 256,
            "hidden_act": "silu",
            "layer_norm_epsilon": 1e-5,
            "use_bias": False,
            "use_conv_bias": True,
            "rms_norm": True,
            "residual_in_fp32": True,
            "tie_word_embeddings": True,
        }

    def tensors(self) -> Tensors:
        """Name and shape of every parameter."""
        yield "backbone.embeddings.weight", (self.vocab_size, self.hidden_size)
        for layer in range(self.num_hidden_layers):
            at = f"backbone.layers.{layer}."
            yield f"{at}norm.weight", (self.hidden_size,)
            yield f"{at}mixer.in_proj.weight", (self.inner_size + self.channels + self.num_heads, self.hidden_size)
            yield f"{at}mixer.conv1d.weight", (self.channels, 1, self.conv_kernel)
            yield f"{at}mixer.conv1d.bias", (self.channels,)
            for name in ("A_log", "D", "dt_bias"):
                yield f"{at}mixer.{name}", (self.num_heads,)
            yield f"{at}mixer.norm.weight", (self.inner_size,)
            yield f"{at}mixer.out_proj.weight", (self.hidden_size, self.inner_size)
        yield "backbone.norm_f.weight", (self.hidden_size,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3NextShape:
    """Qwen3-Next: the gated delta rule in three of four layers, gated attention in the fourth, experts in all.
    ``attention`` has the sizes of the latter and of the experts."""

    attention: Shape
    linear_num_value_heads: int = 32
    linear_num_key_heads: int = 16
    linear_head_dim: int = 128
    shared_expert_intermediate_size: int = 512
    full_attention_interval: int = 4
    conv_kernel: int = 4

    @property
    def vocab_size(self) -> int:
        """As :class:`shapes.Shape` has it."""
        return self.attention.vocab_size

    @property
    def first_special(self) -> int:
        """As :class:`shapes.Shape` has it."""
        return self.attention.first_special

    @property
    def keys(self) -> int:
        """Channels of the keys of a recurrent layer, and of its queries."""
        return self.linear_num_key_heads * self.linear_head_dim

    @property
    def values(self) -> int:
        """Channels of its values, and of its gates."""
        return self.linear_num_value_heads * self.linear_head_dim

    @property
    def num_attention_layers(self) -> int:
        """Layers that attend."""
        return self.attention.num_hidden_layers // self.full_attention_interval

    @property
    def mixing_params(self) -> int:
        """Of all layers, what is neither experts nor their router."""
        shape = self.attention
        gated = shape.attention_params + shape.hidden_size * shape.num_attention_heads * shape.head_dim
        projected = 2 * self.keys + 3 * self.values + 2 * self.linear_num_value_heads
        delta = shape.hidden_size * projected + self.conv_kernel * (2 * self.keys + self.values)
        shared = 3 * shape.hidden_size * self.shared_expert_intermediate_size + shape.hidden_size
        layers, attending = shape.num_hidden_layers, self.num_attention_layers
        return attending * gated + (layers - attending) * delta + layers * (shared + shape.router_params)

    def decode_bytes(self, batch: int, context: float) -> float:
        """As :meth:`shapes.Shape.decode_bytes`; states are read and written."""
        shape, attending = self.attention, self.num_attention_layers
        experts = shape.num_hidden_layers * shape.read_experts(batch) * shape.mlp_params
        state = STATE_BYTES * self.values * self.linear_head_dim
        state += BYTES * (self.conv_kernel - 1) * (2 * self.keys + self.values)
        states = 2 * batch * (shape.num_hidden_layers - attending) * state
        cached = batch * context * shape.kv_bytes_per_token * attending / shape.num_hidden_layers
        return BYTES * (self.mixing_params + experts + shape.head_params) + states + cached

    def prefill_flops(self, tokens: int, context: int = 0) -> float:
        """As :meth:`shapes.Shape.prefill_flops`; a token is read from the state twice, and added to it."""
        shape, attending = self.attention, self.num_attention_layers
        chosen = shape.num_hidden_layers * shape.num_experts_per_tok * shape.mlp_params
        rule = (shape.num_hidden_layers - attending) * 6 * self.values * self.linear_head_dim
        attention = 4 * shape.num_attention_heads * shape.head_dim * (context + tokens / 2)
        each = 2 * (self.mixing_params + chosen) + rule + attending * attention
        return tokens * each + 2 * shape.head_params

    def config(self) -> dict[str, Any]:
        """``config.json``."""
        shape = self.attention
        return {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": shape.num_hidden_layers,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_key_value_heads,
            "head_dim": shape.head_dim,
            "vocab_size": shape.vocab_size,
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.num_experts_per_tok,
            "moe_intermediate_size": shape.moe_intermediate_size,
            "shared_expert_intermediate_size": self.shared_expert_intermediate_size,
            "full_attention_interval": self.full_attention_interval,
            "linear_conv_kernel_dim": self.conv_kernel,
            "linear_key_head_dim": self.linear_head_dim,
            "linear_value_head_dim": self.linear_head_dim,
            "linear_num_key_heads": self.linear_num_key_heads,
            "linear_num_value_heads": self.linear_num_value_heads,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "output_router_logits": False,
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000.0,
            "rope_scaling": None,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": shape.tie_word_embeddings,
        }

    def tensors(self) -> Tensors:
        """Name and shape of every parameter."""
        shape = self.attention
        yield "model.embed_tokens.weight", (shape.vocab_size, shape.hidden_size)
        for layer in range(shape.num_hidden_layers):
            at = f"model.layers.{layer}."
            yield f"{at}input_layernorm.weight", (shape.hidden_size,)
            attends = (layer + 1) % self.full_attention_interval == 0
            yield from self._attention(f"{at}self_attn.") if attends else self._delta(f"{at}linear_attn.")
            yield f"{at}post_attention_layernorm.weight", (shape.hidden_size,)
            yield from self._experts(f"{at}mlp.")
        yield "model.norm.weight", (shape.hidden_size,)
        yield "lm_head.weight", (shape.vocab_size, shape.hidden_size)

    def _attention(self, at: str) -> Tensors:
        shape = self.attention
        queries, keys = (count * shape.head_dim for count in (shape.num_attention_heads, shape.num_key_value_heads))
        yield f"{at}q_proj.weight", (2 * queries, shape.hidden_size)
        yield f"{at}k_proj.weight", (keys, shape.hidden_size)
        yield f"{at}v_proj.weight", (keys, shape.hidden_size)
        yield f"{at}o_proj.weight", (shape.hidden_size, queries)
        yield f"{at}q_norm.weight", (shape.head_dim,)
        yield f"{at}k_norm.weight", (shape.head_dim,)

    def _delta(self, at: str) -> Tensors:
        hidden, heads = self.attention.hidden_size, self.linear_num_value_heads
        yield f"{at}in_proj_qkvz.weight", (2 * self.keys + 2 * self.values, hidden)
        yield f"{at}in_proj_ba.weight", (2 * heads, hidden)
        yield f"{at}conv1d.weight", (2 * self.keys + self.values, 1, self.conv_kernel)
        yield f"{at}A_log", (heads,)
        yield f"{at}dt_bias", (heads,)
        yield f"{at}norm.weight", (self.linear_head_dim,)
        yield f"{at}out_proj.weight", (hidden, self.values)

    def _experts(self, at: str) -> Tensors:
        shape, hidden = self.attention, self.attention.hidden_size
        yield f"{at}gate.weight", (shape.num_experts, hidden)
        yield f"{at}shared_expert_gate.weight", (1, hidden)
        mlps = [(f"{at}shared_expert.", self.shared_expert_intermediate_size)]
        mlps += [(f"{at}experts.{expert}.", shape.moe_intermediate_size) for expert in range(shape.num_experts)]
        for mlp, width in mlps:
            yield f"{mlp}gate_proj.weight", (width, hidden)
            yield f"{mlp}up_proj.weight", (width, hidden)
            yield f"{mlp}down_proj.weight", (hidden, width)


RECURRENT_SHAPES = {
    "tiny-mamba2": Mamba2Shape(hidden_size=128, num_hidden_layers=2, num_heads=4, state_size=32),
    "mamba2-2.7b": Mamba2Shape(hidden_size=2560, num_hidden_layers=64, num_heads=80),
    "qwen3-next-16l": Qwen3NextShape(
        attention=Shape(
            hidden_size=2048, intermediate_size=5120, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=2, head_dim=256, tie_word_embeddings=False, num_experts=512, num_experts_per_tok=10,
            moe_intermediate_size=512,
        ),
    ),
}  # fmt: skip
"""Qwen3-Next with a third of its layers, so that one GPU holds it."""

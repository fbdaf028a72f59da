"""Attention with its projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.attention import Attention, GatedAttention
from llmk.nn.context import StepContext
from llmk.nn.latent import LatentUp

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class SelfAttention:
    """Follows :class:`~llmk.nn.blocks.block.Entered`; its entry is the projection to queries, keys and values, unless
    the attention's output is gated by its input."""

    def __init__(self, builder: Builder, spec: tree.SelfAttention, *, fused: bool) -> None:
        self._qkv = builder.linear(spec.qkv)
        self._attention: Attention
        if spec.gate is None or spec.gate_proj is not None:
            own = {"keys_as_values": True} if spec.keys_as_values else {}
            self._attention = builder.attention(spec.attend, Attention, **own)
        else:
            self._attention = builder.attention(spec.attend, GatedAttention, gate_site=builder.op(spec.gate))
        self._gate = output_gate(builder, spec)
        self._out = builder.linear(spec.out)
        self._clip, self._out_scale = spec.clip, spec.out_scale

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        out = self._attended(self._qkv(x), step)
        return self._out(out if self._gate is None else self._gate(out, x))

    def after(self, qkv: Tensor, *, step: StepContext) -> Tensor:
        return self._out(self._attended(qkv, step))

    def _attended(self, qkv: Tensor, step: StepContext) -> Tensor:
        out = self._attention(qkv if self._clip is None else qkv.clamp(-self._clip, self._clip), step)
        return out if self._out_scale == 1.0 else out * self._out_scale


class OutputGate:
    """A sigmoid gate of attention's output, by a projection of its input."""

    def __init__(self, builder: Builder, gate: tree.Gate, proj: tree.Linear) -> None:
        self._head_dim = gate.size if gate.gate_size == 1 else 0
        self._linear, self._gate = builder.linear(proj), builder.kernel(gate)

    def __call__(self, out: Tensor, x: Tensor) -> Tensor:
        """Gates the attention's output, ``[tokens, heads * value_dim]`` of this rank's heads, for its input ``x``,
        ``[tokens, hidden]``."""
        gate = self._linear(x)
        if self._head_dim:
            heads: Tensor = self._gate(out.unflatten(1, (-1, self._head_dim)), gate.unsqueeze(2))
            return heads.flatten(1)
        gated: Tensor = self._gate(out, gate)
        return gated


def output_gate(builder: Builder, spec: tree.SelfAttention | tree.LatentAttention) -> OutputGate | None:
    """The gate of attention's output by its input, if there is one."""
    if spec.gate is None or spec.gate_proj is None:
        return None
    return OutputGate(builder, spec.gate, spec.gate_proj)


class LatentAttention:
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.LatentAttention, *, fused: bool) -> None:
        shape = spec.attend.shape
        self._sizes = (shape.q_lora_rank or 0, shape.row_size)
        self._down = builder.linear(spec.down)
        self._q_norm = None if spec.q_norm is None else builder.norm(spec.q_norm)
        self._q = builder.linear(spec.q)
        self._attention = builder.latent_attention(spec.attend)
        self._up = LatentUp(builder.build, spec.up.at, shape, site=builder.site(spec.up))
        self._gate = output_gate(builder, spec)
        self._out = builder.linear(spec.out)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        queried, latent = x, self._down(x)
        if self._q_norm is not None:
            compressed, latent = latent.split_with_sizes(self._sizes, 1)
            queried = self._q_norm(compressed)
        out = self._attention(self._q(queried), latent, self._up, step)
        return self._out(out if self._gate is None else self._gate(out, x))

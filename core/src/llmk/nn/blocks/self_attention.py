"""Attention with its projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.attention import Attention, GatedAttention
from llmk.nn.context import StepContext
from llmk.nn.latent import LatentAttention as LatentLayer

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class SelfAttention:
    """Follows :class:`~llmk.nn.blocks.block.Entered`; its entry is the projection to queries, keys and values."""

    def __init__(self, builder: Builder, spec: tree.SelfAttention, *, fused: bool) -> None:
        self._qkv = builder.linear(spec.qkv)
        kind, options = (Attention, {}) if spec.gate is None else (GatedAttention, {"gate_site": builder.op(spec.gate)})
        self._attention = builder.attention(spec.attend, kind, **options)
        self._out = builder.linear(spec.out)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        return self._out(self._attention(self._qkv(x), step))

    def after(self, qkv: Tensor, *, step: StepContext) -> Tensor:
        return self._out(self._attention(qkv, step))


class LatentAttention:
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.LatentAttention, *, fused: bool) -> None:
        attend = spec.attend
        index = builder.attention_cache(attend)
        self._layer = LatentLayer(
            builder.build, spec.at, attend.shape, index=index, cos_sin=builder.cos_sin(attend.rope), norm_eps=attend.eps
        )

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        return self._layer(x, step)

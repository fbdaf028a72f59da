"""Mamba-1's mixer with its projections, and short convolutions with theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class ConvMixer:
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.ConvMixer, *, fused: bool) -> None:
        self._into = builder.linear(spec.into)
        self._conv = builder.short_conv(spec.conv)
        self._out = builder.linear(spec.out)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        return self._out(self._conv(self._into(x), step))


class SelectiveMixer:
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.SelectiveMixer, *, fused: bool) -> None:
        self._into = builder.linear(spec.into)
        self._scan = builder.selective_scan(spec.scan)
        self._vectors, self._steps = builder.linear(spec.vectors), builder.linear(spec.steps)
        self._norms = [builder.norm(norm) for norm in spec.norms]
        self._out = builder.linear(spec.out)
        size = (spec.vectors.rows - spec.steps.size) // 2
        self._sizes = spec.steps.size, size, size

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        x, gate = self._into(x).chunk(2, dim=1)
        x = self._scan.convolve(x, step)
        parts = self._vectors(x).split_with_sizes(self._sizes, 1)
        if self._norms:
            parts = tuple(norm(part) for norm, part in zip(self._norms, parts, strict=True))
        dt, b, c = parts
        return self._out(self._scan(x, self._steps(dt), b, c, gate, step))

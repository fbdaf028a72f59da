"""Mamba-2's mixer with its projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class ScanMixer:
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    def __init__(self, builder: Builder, spec: tree.ScanMixer, *, fused: bool) -> None:
        self._into = builder.linear(spec.into)
        self._scan = builder.state_space(spec.scan)
        self._out = builder.linear(spec.out)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        return self._out(self._scan(self._into(x), step))

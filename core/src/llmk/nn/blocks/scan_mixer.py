"""Mamba-2's mixer with its projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class ScanMixer:
    """Follows :class:`~llmk.nn.blocks.block.Block`."""

    _factors: Tensor | None = None

    def __init__(self, builder: Builder, spec: tree.ScanMixer, *, fused: bool) -> None:
        self._into = builder.linear(spec.into)
        self._scan = builder.state_space(spec.scan)
        self._out = builder.linear(spec.out)
        if spec.factors:
            build, count = builder.build, builder.build.parallel.count
            rows = torch.tensor([count(part.units) * (part.rows // part.units) for part in spec.into.outputs])
            factors = torch.tensor(spec.factors, dtype=build.dtype).repeat_interleave(rows)
            self._factors = factors.to(build.device)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        projected = self._into(x)
        return self._out(self._scan(projected if self._factors is None else projected * self._factors, step))

"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.context import StepContext

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.builder import Builder


class GatedMLP:
    """Follows :class:`~llmk.nn.blocks.block.Entered`; its entry is gate and up projection with the activation."""

    _op: Callable[..., Tensor]

    def __init__(self, builder: Builder, spec: tree.GatedMLP, *, fused: bool) -> None:
        self._gate_up, self._down = builder.linear(spec.gate_up), builder.linear(spec.down)
        self._apart = spec.gate_up.adapters is not None
        if not fused:
            op = builder.kernel(spec, None if self._apart else self._gate_up)
            self._op = partial(op, **spec.options) if spec.options else op

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        if self._apart:
            return self._down(self._op(self._gate_up(x)))
        return self._down(self._op(x, self._gate_up.weight, self._gate_up.bias))

    def after(self, gated: Tensor, *, step: StepContext) -> Tensor:
        return self._down(gated)


class MLP:
    """Follows :class:`~llmk.nn.blocks.block.Block`; without a gate."""

    def __init__(self, builder: Builder, spec: tree.MLP, *, fused: bool) -> None:
        self._up, self._down = builder.linear(spec.up), builder.linear(spec.down)
        self._activate = builder.kernel(spec)
        self._activation = spec.activation

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        return self._down(self._activate(self._up(x), self._activation))

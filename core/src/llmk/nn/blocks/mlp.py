"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.nn.context import StepContext
from llmk.nn.layer import Layer, Parameter

if TYPE_CHECKING:
    from llmk import tree
    from llmk.nn.build import Build
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
        kernel = builder.kernel(spec)
        self._activation, self._spanning = spec.activation, builder.spanning(spec, self._down)
        self._activate: Callable[[Tensor], Tensor]
        if spec.xielu is None:
            self._activate = lambda x: kernel(x, spec.activation)
        else:
            self._activate = Xielu(builder.build, spec.xielu, kernel)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        up, down = self._up(x), self._down
        if self._spanning is not None:
            return self._spanning(up, self._activation, down.weight, down.bias)
        return down(self._activate(up))


class Xielu(Layer):
    """xIELU with its parameters."""

    def __init__(self, build: Build, spec: tree.Xielu, op: Callable[..., Tensor]) -> None:
        self._op = op
        names = [tensor.name for tensor in spec.tensors()]
        super().__init__(build, [Parameter(build, [name], [1], dtype=torch.float32) for name in names])

    def finish(self) -> None:
        self._values = [parameter.take() for parameter in self.parameters]

    def __call__(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return self._op(x, *self._values)

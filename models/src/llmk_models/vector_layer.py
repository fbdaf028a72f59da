"""The layer that owns a :class:`~llmk_models.vector.Vector`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn import Layer, Parameter

if TYPE_CHECKING:
    from llmk.nn import Builder
    from llmk_models.vector import Vector


class VectorLayer(Layer):
    """Multiplies by a vector of the checkpoint, in the engine's dtype."""

    weight: Tensor

    def __init__(self, builder: Builder, spec: Vector) -> None:
        super().__init__(builder.build, [Parameter(builder.build, [spec.at], [spec.size], dummy_std=None)])

    def finish(self) -> None:
        self.weight = self.parameters[0].take()

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, size]`` to the same, or any width where the size is 1."""
        return x * self.weight

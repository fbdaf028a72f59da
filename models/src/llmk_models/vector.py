"""A stored vector that a layer multiplies by. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from llmk.tree import Leaf, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector(Leaf):
    """A tensor ``[size]``, named ``at``."""

    size: int

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(self.at, (self.size,)),)

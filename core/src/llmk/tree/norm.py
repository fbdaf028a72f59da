"""Norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmk.api import OpFacts
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Leaf):
    """A root-mean-square norm: ``x / rms(x) * (offset + weight)``."""

    size: int
    eps: float
    offset: float = 0.0
    """Added to the stored weight; other than 0, the multiplication is in float32 (Gemma)."""
    weighted: bool = True
    """Whether it has a weight; a norm without one has a role."""
    role: str = ""
    """The name of its own site. Empty: its place is in a :class:`~llmk.tree.Residual`, whose ops span more."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(f"{self.at}.weight", (self.size,)),) if self.weighted else ()

    @property
    def facts(self) -> dict[str, float]:
        """The facts of an op that computes it."""
        return {"size": self.size, "norm_offset": self.offset} if self.offset else {"size": self.size}

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        return (OpFacts(site=self.role, op="rms_norm", facts=self.facts),) if self.role else ()

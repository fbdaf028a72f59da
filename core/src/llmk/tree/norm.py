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
    role: str = ""
    """The name of its own site. Empty: its place is in a :class:`~llmk.tree.Residual`, whose ops span more."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(f"{self.at}.weight", (self.size,)),)

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        if not self.role:
            return ()
        return (OpFacts(site=self.role, op=offset_op("rms_norm", self.offset), facts={"size": self.size}),)


def offset_op(op: str, offset: float) -> str:
    """The op ``op`` for norms with ``offset``."""
    return f"{op}_plus_one" if offset else op

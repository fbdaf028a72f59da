"""Norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmk.api import OpFacts
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Leaf):
    """A root-mean-square norm: ``x / rms(x) * (offset + weight)``; ``centered``, LayerNorm, which subtracts the mean
    first (arXiv:1607.06450)."""

    size: int
    eps: float
    offset: float = 0.0
    """Added to the stored weight; other than 0, the multiplication is in float32 (Gemma)."""
    centered: bool = False
    weighted: bool = True
    """Whether the checkpoint has a weight (OLMo has none). A norm that lacks it is ``centered``, or has a role."""
    bias: bool = False
    """Whether it has a bias, as only ``centered`` norms have."""
    role: str = ""
    """The name of its own site. Empty: its place is in a :class:`~llmk.tree.Residual`, whose ops span more."""

    def tensors(self) -> tuple[Tensor, ...]:
        names = ("weight",) * self.weighted + ("bias",) * self.bias
        return tuple(Tensor(f"{self.at}.{name}", (self.size,)) for name in names)

    @property
    def op(self) -> str:
        """The op that computes it alone."""
        return "layer_norm" if self.centered else "rms_norm"

    @property
    def facts(self) -> dict[str, float]:
        """The facts of an op that computes it."""
        return {"size": self.size, "norm_offset": self.offset} if self.offset else {"size": self.size}

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        return (OpFacts(site=self.role, op=self.op, facts=self.facts),) if self.role else ()

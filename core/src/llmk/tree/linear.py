"""Linear layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from llmk.api import LinearFacts, OpFacts
from llmk.api.facts import Cut
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """Output features that belong together: ``rows`` of them, in ``units`` (heads) that tensor parallelism keeps whole.
    ``name`` is that of the projection, if the checkpoint stores it separately (``"q_proj"``)."""

    rows: int
    units: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """Room at a linear layer for ``count`` low-rank adapters (LoRA, arXiv:2106.09685), of ``rank`` at most."""

    count: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(Leaf):
    """``y = x @ weight.T + bias``, one GEMM for all ``outputs``.

    ``at`` is the name of the packed layer. Parts with a name are stored under the same parent; the checkpoint may also
    store the packed tensor.
    """

    role: str
    """The name of its site."""
    size: int
    """Input features."""
    outputs: tuple[Part, ...]
    bias: bool = False
    cut: Cut = ""
    """How tensor-parallel ranks shard it."""
    quantizable: bool = True
    partial: bool = False
    """Skip the all-reduce of a row-parallel layer; the block that it is a part of does it."""
    groups: int = 0
    """If not 0, the packed tensor is stored as that many groups, one below the other; each has an equal share of every
    output, in order (GPT-NeoX, Falcon). No output has a name then."""
    aliases: tuple[str, ...] = ()
    """Other names of the whole layer in the checkpoint. Parts with a name may be stored under their parents too."""
    absorbed: bool = False
    """Whether another op has its weight, so that it is never run by itself."""
    adapters: AdapterRoom | None = None
    """Set by :func:`~llmk.tree.adapted`. No op then spans the layer and what is before or after it."""

    @classmethod
    def packed(
        cls,
        at: str,
        role: str,
        size: int,
        names: Sequence[str],
        rows: Sequence[int],
        units: Sequence[int] = (),
        **more: Any,
    ) -> Self:
        """Projections that are stored separately, sharded by columns: ``rows`` output features each, in ``units``."""
        outputs = tuple(Part(*each) for each in zip(rows, units or rows, names, strict=True))
        return cls(at=at, role=role, size=size, outputs=outputs, cut="column", **more)

    @classmethod
    def column(cls, at: str, role: str, size: int, rows: int, units: int = 0, **more: Any) -> Self:
        """A layer of which each tensor-parallel rank computes some of the ``units`` of ``rows``."""
        return cls(at=at, role=role, size=size, outputs=(Part(rows, units or rows),), cut="column", **more)

    @classmethod
    def row(cls, at: str, role: str, size: int, rows: int, **more: Any) -> Self:
        """A layer of which each tensor-parallel rank takes some of the input features; the results are all-reduced."""
        return cls(at=at, role=role, size=size, outputs=(Part(rows, rows),), cut="row", **more)

    @classmethod
    def whole(cls, at: str, role: str, size: int, rows: int, **more: Any) -> Self:
        """A layer that every tensor-parallel rank computes."""
        return cls(at=at, role=role, size=size, outputs=(Part(rows, rows),), **more)

    @property
    def rows(self) -> int:
        """Output features."""
        return sum(part.rows for part in self.outputs)

    @property
    def modules(self) -> dict[str, int]:
        """The checkpoint's name of each projection, and its output features."""
        if not self.outputs[0].name:
            return {self.at: self.rows}
        parent = self.at.rpartition(".")[0]
        return {f"{parent}.{part.name}" if parent else part.name: part.rows for part in self.outputs}

    def tensors(self) -> tuple[Tensor, ...]:
        modules = self.modules.items()
        weights = [Tensor(f"{name}.weight", (rows, self.size)) for name, rows in modules]
        biases = [Tensor(f"{name}.bias", (rows,)) for name, rows in modules] if self.bias else []
        return (*weights, *biases)

    def quantizable_modules(self) -> tuple[str, ...]:
        return tuple(self.modules) if self.quantizable else ()

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        """What adds the adapters' results, if there is room for any."""
        if self.adapters is None:
            return ()
        facts = {
            "in_features": self.size,
            "out_features": self.rows,
            "num_parts": len(self.modules),
            "num_adapters": self.adapters.count,
            "rank": self.adapters.rank,
        }
        divided = {"column": ("out_features",), "row": ("in_features",)}.get(self.cut, ())
        return (OpFacts(site=f"{self.role}.adapters", op="add_adapters", facts=facts, divided=divided),)

    def site(self, dtype: str) -> LinearFacts:
        return _facts(self.role, self.size, self.outputs, self.bias, self.cut, self.quantizable)


@cache
def _facts(role: str, size: int, outputs: tuple[Part, ...], bias: bool, cut: Cut, quantizable: bool) -> LinearFacts:
    return LinearFacts(
        site=role,
        in_features=size,
        out_features=sum(part.rows for part in outputs),
        bias=bias,
        quantizable=quantizable,
        parallel=cut,
        units=tuple((part.units, part.rows // part.units) for part in outputs) if cut == "column" else (),
    )

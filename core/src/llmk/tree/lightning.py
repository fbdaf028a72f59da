"""Lightning attention (arXiv:2405.17381): linear attention whose states decay at a constant rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from llmk.api import StateTensor
from llmk.tree.spec import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSizes:
    """Sizes of lightning attention; ``site``, ``divided`` and ``state_divided`` as in
    :class:`~llmk.tree.StateSpaceSizes`."""

    site: ClassVar[str] = "lightning_attention"
    divided: ClassVar[tuple[str, ...]] = ("num_heads", "num_groups")
    state_divided: ClassVar[tuple[int, ...]] = (0,)

    num_heads: int
    head_dim: int

    @property
    def units(self) -> int:
        """How many units tensor-parallel ranks shard: each head is one."""
        return self.num_heads

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of its op, which are those of the selective scan that it equals: one of step size 1, in which each
        head has keys and queries of its own."""
        heads, size = self.num_heads, self.head_dim
        return {
            "num_heads": heads,
            "head_dim": size,
            "num_groups": heads,
            "state_size": size,
            "dt_limits": (1.0, 1.0),
        }

    def state(self, dtype: str) -> tuple[StateTensor, ...]:
        """The state tensor of one layer; ``dtype`` is the engine's."""
        return (StateTensor("heads", (self.num_heads, self.head_dim, self.head_dim), "float32", accumulates=True),)

    def inputs(self, dtype: str) -> tuple[StateTensor, ...]:
        """What a token adds to the state: queries, keys and values."""
        return tuple(StateTensor(name, (self.num_heads * self.head_dim,), dtype) for name in ("q", "k", "v"))

    def tensors(self, at: str) -> tuple[Tensor, ...]:
        """None: decays follow from the number of heads and of layers."""
        return ()

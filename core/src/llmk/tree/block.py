"""Blocks: what stands in the residual stream of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from llmk.api import OpFacts
from llmk.tree.linear import Linear
from llmk.tree.norm import Norm
from llmk.tree.spec import Spec


class Entry(NamedTuple):
    """How a block starts, for an op that spans the norm before it."""

    op: str
    """The composite op of the norm and of what the block does first (``"add_rms_norm_linear"``)."""
    linear: Linear
    """The linear layer that is part of the op."""
    suffix: str = ""
    """What the op's site has after the linear layer's."""
    inner_size: int = 0
    """The op's ``intermediate_size``; 0: it has none."""
    options: tuple[tuple[str, float], ...] = ()
    """Further facts of the op, which its kernel gets by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Spec):
    """Maps hidden states ``[tokens, hidden]`` to ``[tokens, hidden]``."""

    @property
    def entry(self) -> Entry | None:
        """How it starts, if an op may span the norm before it."""
        return None

    def own_ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        """The op sites that it binds only if its entry is not fused with the norm before it."""
        return ()

    def addend(self, partial: Callable[[Linear], Linear]) -> Block | None:
        """A copy that leaves the sum over tensor-parallel ranks to the joint after it; ``None`` if it can't.

        Args:
            partial: a copy of a row-parallel layer without its all-reduce, the same one for the same layer.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual(Spec):
    """``x + scale * post(block(norm(x)))``. Without ``norm`` or ``post``, that norm is left out."""

    norm: Norm | None
    block: Block
    post: Norm | None = None
    scale: float = 1.0

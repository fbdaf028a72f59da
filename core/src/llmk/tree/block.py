"""Blocks: what stands in the residual stream of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

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
    def is_token_wise(self) -> bool:
        """Whether what it computes for a token depends on that token's input alone, and on nothing else of the step, so
        that it may be left out for tokens whose output is not used."""
        return False

    @property
    def entry(self) -> Entry | None:
        """How it starts, if an op may span the norm before it."""
        return None

    def own_ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        """The op sites that it binds only if its entry is not fused with the norm before it."""
        return ()

    @property
    def follower(self) -> Linear | None:
        """The linear layer that alone reads the result of its last own op, and computes nothing else."""
        return None

    def addend(self, partial: Callable[[Linear], Linear]) -> Block | None:
        """A copy that leaves the sum over tensor-parallel ranks to the joint after it; ``None`` if it can't.

        Args:
            partial: a copy of a row-parallel layer without its all-reduce, the same one for the same layer.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Spec):
    """``block(norm(x))``, one of the branches of a :class:`Parallel`. A norm has a ``role``; without one, ``x`` is not
    normed."""

    norm: Norm | None = None
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(Block):
    """The sum of several branches of the same input (GPT-J)."""

    branches: tuple[Branch, ...]

    @property
    def is_token_wise(self) -> bool:
        return all(branch.block.is_token_wise for branch in self.branches)

    @classmethod
    def of(cls, at: str, *blocks: Block) -> Self:
        """Of blocks that are not normed by themselves."""
        return cls(at=at, branches=tuple(Branch(at=block.at, block=block) for block in blocks))

    def addend(self, partial: Callable[[Linear], Linear]) -> Self | None:
        blocks = [branch.block.addend(partial) for branch in self.branches]
        pairs = list(zip(self.branches, blocks, strict=True))
        if any(block is None for block in blocks):
            return None
        return replace(self, branches=tuple(replace(branch, block=block) for branch, block in pairs if block))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual(Spec):
    """``x + scale * post(block(norm(x)))``. Without ``norm`` or ``post``, that norm is left out. A block has a ``post``
    or a ``scale`` other than 1, not both; a ``post`` has the eps and the offset of the norm that follows it."""

    norm: Norm | None
    block: Block
    post: Norm | None = None
    scale: float = 1.0

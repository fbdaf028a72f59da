"""Experts that a table names for each token id (hash layers, arXiv:2106.04426), or that scores with a bias choose,
alongside a shared one. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmk.tree import Block, Experts, GatedMLP, Leaf, Linear, Tensor
from llmk_models.vector import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTable(Leaf):
    """The experts of each token id, ``[vocab_size, top_k]``, named ``at``."""

    vocab_size: int
    top_k: int

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(self.at, (self.vocab_size, self.top_k)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExperts(Block):
    """Experts by token ids, with the weights that their scores give them: the square roots of softplus, divided by
    their sum."""

    implementation: ClassVar[str] = "llmk_models.token_expert_layers:TokenExperts"

    router: Linear
    experts: Experts
    """Of sigmoid scores, which are made of the weights."""
    table: ExpertTable | None
    bias: Vector | None
    """Of each expert, in the choice, where there is no table."""
    shared: GatedMLP
    """Leaves its sum over tensor-parallel ranks to the block."""

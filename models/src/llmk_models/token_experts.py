"""Experts that a table names for each token id (hash layers, arXiv:2106.04426), or that scores with a bias choose,
alongside a shared one. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from llmk.api import MoEFacts
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
    """Of softmax scores, which are the weights."""
    table: ExpertTable | None
    bias: Vector | None
    """Of each expert, in the choice, where there is no table."""
    shared: GatedMLP
    """Leaves its sum over tensor-parallel ranks to the block."""

    @classmethod
    def of(cls, at: str, facts: MoEFacts, *, vocab_size: int) -> Self:
        """With the names of DeepSeek-V4, and a shared expert like the others; ``vocab_size``: that of the table; 0:
        there is none."""
        shared, hidden, inner = f"{at}.shared_experts", facts.hidden_size, facts.intermediate_size
        count, names = facts.num_experts, ("w1", "w3", "w2")
        gate_up = Linear.packed(f"{shared}.w13", "shared_gate_up", hidden, names[:2], (inner, inner))
        down = Linear.row(f"{shared}.w2", "shared_down", inner, hidden, partial=True)
        table = ExpertTable(at=f"{at}.gate.tid2eid", vocab_size=vocab_size, top_k=facts.top_k)
        return cls(
            at=at,
            router=Linear.whole(f"{at}.gate", "moe.router", hidden, count, quantizable=False),
            experts=Experts(at=f"{at}.experts", facts=facts, names=names),
            table=table if vocab_size else None,
            bias=None if vocab_size else Vector(at=f"{at}.gate.bias", size=count),
            shared=GatedMLP(at=shared, gate_up=gate_up, down=down, activation_limit=facts.activation_limit),
        )

"""Token embeddings and the LM head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmk.api import LinearFacts, OpFacts
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Leaf):
    """The table of token embeddings, ``[vocab_size, size]``."""

    vocab_size: int
    size: int
    scale: float | None = None
    """Factor of the embeddings; ``None``: not scaled."""
    scale_given: bool = False
    """Whether embeddings that prompts have in place of tokens get the factor too, as in Granite."""
    aliases: tuple[str, ...] = ()
    """Other names of the table in the checkpoint, such as a tied head's."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(f"{self.at}.weight", (self.vocab_size, self.size)),)

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        op = "embedding" if self.scale is None else "scaled_embedding"
        facts = {"vocab_size": self.vocab_size, "hidden_size": self.size}
        return (OpFacts(site=op, op=op, facts=facts, divided=("vocab_size",)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Leaf):
    """Computes logits from the final hidden states."""

    vocab_size: int
    size: int
    tied: bool = False
    """Whether its weight is the embedding's table; it then owns none."""
    bias: bool = False
    scale: float = 1.0
    """Factor of the logits."""
    softcap: float | None = None
    """Soft cap of the logits, after the factor; ``None``: no cap."""

    def tensors(self) -> tuple[Tensor, ...]:
        weight = () if self.tied else (Tensor(f"{self.at}.weight", (self.vocab_size, self.size)),)
        return (*weight, Tensor(f"{self.at}.bias", (self.vocab_size,))) if self.bias else weight

    def quantizable_modules(self) -> tuple[str, ...]:
        return (self.at,)

    def site(self, dtype: str) -> LinearFacts:
        return LinearFacts(
            site="lm_head",
            in_features=self.size,
            out_features=self.vocab_size,
            bias=self.bias,
            tied=self.tied,
            parallel="vocab",
        )

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        if self.softcap is None:
            return ()
        return (OpFacts(site="softcap", op="softcap", facts={"size": self.vocab_size}, divided=("size",)),)

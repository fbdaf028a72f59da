"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from llmk.api import MoEFacts
from llmk.api.query import expanded_size
from llmk.tree.attention import Gate
from llmk.tree.block import Block, Entry
from llmk.tree.linear import Linear
from llmk.tree.mlp import MLP, GatedMLP
from llmk.tree.spec import Leaf, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Leaf):
    """All experts of a block, computed by one kernel. ``at`` is the name of their list in the checkpoint, which stores
    them one by one (``{at}.{expert}.gate_proj.weight``), or stacked in two tensors (``{at}.gate_up_proj``, without
    gates ``{at}.up_proj``, and ``{at}.down_proj``; the format of transformers 5)."""

    facts: MoEFacts
    """Sizes, router scoring and activation; ``site`` is their role, and ``count`` stays 1."""
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    """The checkpoint's names of an expert's projections; the first two are one where experts have no gates."""
    aliases: tuple[str, ...] = ()
    """Other names of the list."""
    stacked: tuple[str, ...] = ()
    """Names of the two stacked tensors, gate and up first, where the checkpoint has names of its own for them."""
    interleaved: bool = False
    """Whether they are stored transposed, in two tensors, in the first of which gate and up features alternate
    (``llmk.nn.InterleavedExperts``)."""
    transposed: bool = False
    """The same, with all gate features before the up features (``llmk.nn.TransposedExperts``)."""
    selection_bias: tuple[str, ...] = ()
    """The checkpoint's names of the bias of ``facts.selection_bias``: its own, then others."""
    output_scale: str = ""
    """The checkpoint's name of a factor of each expert's output; empty: there is none."""

    def tensors(self) -> tuple[Tensor, ...]:
        vectors = (*self.selection_bias[:1], *([self.output_scale] if self.output_scale else ()))
        own = tuple(Tensor(name, (self.facts.num_experts,)) for name in vectors)
        kept = (
            self._transposed()
            if self.interleaved or self.transposed
            else self._stacked()
            if self.stacked
            else self._one_by_one()
        )
        return (*kept, *own)

    def _transposed(self) -> tuple[Tensor, ...]:
        facts = self.facts
        count, hidden, inner = facts.num_experts, facts.hidden_size, facts.intermediate_size
        shapes = {"gate_up_proj": (count, hidden, 2 * inner), "down_proj": (count, inner, hidden)}
        weights = [Tensor(f"{self.at}.{name}", shape) for name, shape in shapes.items()]
        biases = [Tensor(f"{self.at}.{name}_bias", (count, shape[2])) for name, shape in shapes.items()]
        return (*weights, *biases) if facts.bias else tuple(weights)

    def _stacked(self) -> tuple[Tensor, ...]:
        facts, (gate_up, down) = self.facts, self.stacked
        count, hidden, inner = facts.num_experts, facts.hidden_size, facts.intermediate_size
        return Tensor(gate_up, (count, expanded_size(facts), hidden)), Tensor(down, (count, hidden, inner))

    def _one_by_one(self) -> tuple[Tensor, ...]:
        facts, (*gate_up, down) = self.facts, self.names
        hidden, inner = facts.hidden_size, facts.intermediate_size
        shapes = {**dict.fromkeys(gate_up, (inner, hidden)), down: (hidden, inner)}
        stem, copies = f"{self.at}.{{}}", facts.num_experts
        weights = [Tensor(f"{stem}.{name}.weight", shape, copies) for name, shape in shapes.items()]
        biases = [Tensor(f"{stem}.{name}.bias", shape[:1], copies) for name, shape in shapes.items()]
        return (*weights, *biases) if facts.bias else tuple(weights)

    def quantizable_modules(self) -> tuple[str, ...]:
        return () if self.interleaved else tuple(f"{self.at}.0.{name}" for name in self.names)

    def site(self, dtype: str) -> MoEFacts:
        return self.facts


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE(Block):
    """A router and experts of which each token uses a few, plus the ``shared`` MLP for every token, times the sigmoid
    of ``shared_gate`` if there is one. ``latent`` are the projections into a narrower space, in which the experts work,
    and back; the router and ``shared`` stay outside. With ``scaled_input``, a token has one expert, whose input is
    multiplied by the sigmoid of its logit, and whose output has the weight 1 (Llama 4)."""

    router: Linear
    experts: Experts
    latent: tuple[Linear, ...] = ()
    scaled_input: bool = False
    shared: GatedMLP | MLP | None = None
    shared_gate: Linear | None = None
    shared_scale: Gate | None = None
    """The op that applies ``shared_gate``."""
    partial: bool = False
    """Skip the all-reduce of the sum of all experts; the joint after the block does it."""

    @property
    def is_token_wise(self) -> bool:
        return True

    @classmethod
    def of(
        cls,
        at: str,
        facts: MoEFacts,
        *,
        names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
        aliases: tuple[str, ...] = (),
        router: str = "gate",
        selection_bias: str = "gate.e_score_correction_bias",
        stacked: tuple[str, ...] = (),
        interleaved: bool = False,
        transposed: bool = False,
        scaled_input: bool = False,
        latent: tuple[str, ...] = (),
        hidden_size: int = 0,
        shared: GatedMLP | MLP | None = None,
        shared_gate: str = "",
    ) -> Self:
        """With the usual names.

        Args:
            aliases: other names of the block in the checkpoint.
            router, selection_bias: the checkpoint's names of the router and of the bias of ``facts.selection_bias``,
                below the block (``gate.bias`` is that of its ``gate``).
            stacked, interleaved, transposed: see :class:`Experts`.
            scaled_input: see the class.
            latent: the checkpoint's names of the projections into the experts' space and back, if they have one.
            hidden_size: of the model, if that of ``facts`` is not.
            shared_gate: the checkpoint's name of the gate of the shared MLP; empty: it has none.
            shared: made with ``partial=True``, because the sum of all experts is all-reduced.
        """
        hidden, role = hidden_size or facts.hidden_size, shared.prefix if shared else ""
        sizes = ((hidden, facts.hidden_size), (facts.hidden_size, hidden))
        spaces = zip(latent, ("narrow", "widen"), sizes, strict=False)
        biased = (at, *aliases) if facts.selection_bias else ()
        gate = {"size": hidden, "rows": 1, "quantizable": False}
        return cls(
            at=at,
            router=Linear.whole(
                *(f"{at}.{router}", f"{facts.site}.router", hidden, facts.num_experts),
                bias=facts.router_bias,
                quantizable=False,
                aliases=tuple(f"{name}.{router}" for name in aliases),
            ),
            experts=Experts(
                at=f"{at}.experts",
                facts=facts,
                names=names,
                aliases=tuple(f"{name}.experts" for name in aliases),
                stacked=stacked,
                interleaved=interleaved,
                transposed=transposed,
                selection_bias=tuple(f"{name}.{selection_bias}" for name in biased),
            ),
            latent=tuple(Linear.whole(f"{at}.{name}", f"{facts.site}.{way}", *size) for name, way, size in spaces),
            scaled_input=scaled_input,
            shared=shared,
            shared_gate=Linear.whole(f"{at}.{shared_gate}", f"{role}gate", **gate) if shared_gate else None,
            shared_scale=Gate(role=f"{role}sigmoid_gate", size=hidden, gate_size=1) if shared_gate else None,
        )

    @property
    def entry(self) -> Entry | None:
        return Entry("add_rms_norm_router", self.router) if self.router.adapters is None else None

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, partial=True)

"""The gated feed-forward block (MLP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from llmk.api import OpFacts
from llmk.tree.block import Block, Entry
from llmk.tree.linear import Linear
from llmk.tree.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMLP(Block):
    """``down(activation(gate(x)) * up(x))``, with gate and up packed into one linear layer.

    ``activation`` is ``"silu"`` or ``"gelu_tanh"``.
    """

    gate_up: Linear
    down: Linear
    activation: str = "silu"

    @classmethod
    def of(
        cls,
        at: str,
        hidden_size: int,
        inner_size: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        prefix: str = "",
        partial: bool = False,
    ) -> Self:
        """With the usual names. ``prefix`` is prepended to its roles; ``partial``: see :class:`~llmk.tree.Linear`."""
        names, rows = ("gate_proj", "up_proj"), (inner_size, inner_size)
        down = f"{prefix}down"
        return cls(
            at=at,
            gate_up=Linear.packed(f"{at}.gate_up_proj", f"{prefix}gate_up", hidden_size, names, rows, bias=bias),
            down=Linear.row(f"{at}.down_proj", down, inner_size, hidden_size, bias=bias, partial=partial),
            activation=activation,
        )

    @property
    def entry(self) -> Entry | None:
        if self.activation != "silu":
            return None
        return Entry("add_rms_norm_gate_up_silu", self.gate_up, "_silu", self.down.size)

    def own_ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        op, facts = f"gate_up_{self.activation}", {"intermediate_size": self.down.size}
        site, divided = f"{self.gate_up.role}_{self.activation}", ("intermediate_size",)
        return (OpFacts(site=site, op=op, facts=facts, linear=name(self.gate_up), divided=divided),)

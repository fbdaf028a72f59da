"""Feed-forward blocks (MLPs)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from llmk.api import OpFacts
from llmk.tree.block import Block, Entry
from llmk.tree.linear import Linear
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMLP(Block):
    """``down(activation(gate(x)) * up(x))``, with gate and up packed into one linear layer.

    ``activation`` is ``"silu"``, ``"gelu"`` or ``"gelu_tanh"``. The parameters of the activation are those of
    :class:`~llmk.api.MoEFacts`.
    """

    gate_up: Linear
    down: Linear
    activation: str = "silu"
    activation_alpha: float = 1.0
    activation_limit: float | None = None
    up_offset: float = 0.0

    @property
    def is_token_wise(self) -> bool:
        return True

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
        aliases: tuple[str, ...] = (),
        **activation_options: float,
    ) -> Self:
        """With the usual names. ``prefix`` is prepended to its roles; ``partial``: see :class:`~llmk.tree.Linear`;
        ``aliases`` are other names of the block in the checkpoint; ``activation_options`` are the parameters of the
        activation."""
        names, rows = ("gate_proj", "up_proj"), (inner_size, inner_size)
        gate_up, down = (f"{at}.gate_up_proj", f"{prefix}gate_up"), (f"{at}.down_proj", f"{prefix}down")
        known = [tuple(f"{alias}.{name}" for alias in aliases) for name in ("gate_up_proj", "down_proj")]
        own: dict[str, Any] = {"bias": bias, "partial": partial}
        return cls(
            at=at,
            gate_up=Linear.packed(*gate_up, hidden_size, names, rows, bias=bias, aliases=known[0]),
            down=Linear.row(*down, inner_size, hidden_size, aliases=known[1], **own),
            activation=activation,
            **activation_options,
        )

    @property
    def prefix(self) -> str:
        """What its roles start with."""
        return self.gate_up.role.removesuffix("gate_up")

    @property
    def entry(self) -> Entry | None:
        if self.activation != "silu" or self.gate_up.adapters is not None:
            return None
        return Entry("add_rms_norm_gate_up_silu", self.gate_up, "_silu", self.down.size, tuple(self.options.items()))

    @property
    def options(self) -> dict[str, float]:
        """The parameters of the activation that are not neutral: facts of its op, which its kernel gets by name."""
        limit = {} if self.activation_limit is None else {"activation_limit": self.activation_limit}
        others = {"activation_alpha": (self.activation_alpha, 1.0), "up_offset": (self.up_offset, 0.0)}
        return limit | {name: value for name, (value, neutral) in others.items() if value != neutral}

    def own_ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        facts: dict[str, Any] = {"intermediate_size": self.down.size, **self.options}
        site, divided = f"{self.gate_up.role}_{self.activation}", ("intermediate_size",)
        if self.gate_up.adapters is not None:  # they are added between the two
            return (OpFacts(site=site, op=f"{self.activation}_and_mul", facts=facts, divided=divided),)
        op, linear = f"gate_up_{self.activation}", name(self.gate_up)
        return (OpFacts(site=site, op=op, facts=facts, linear=linear, divided=divided),)

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, down=partial(self.down))


@dataclass(frozen=True, slots=True, kw_only=True)
class Xielu(Leaf):
    """The parameters of xIELU (arXiv:2411.13010), an activation without a gate: four numbers."""

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(Tensor(f"{self.at}.{name}", (1,)) for name in ("alpha_p", "alpha_n", "beta", "eps"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MLP(Block):
    """``down(activation(up(x)))``, without a gate. ``activation`` is a name in
    ``llmk.reference.activations.PLAIN_ACTIVATIONS``, or ``"xielu"``, which has parameters."""

    up: Linear
    down: Linear
    activation: str
    xielu: Xielu | None = None

    @property
    def is_token_wise(self) -> bool:
        return True

    @classmethod
    def of(
        cls,
        at: str,
        hidden_size: int,
        inner_size: int,
        activation: str,
        *,
        bias: bool = False,
        names: tuple[str, str] = ("up_proj", "down_proj"),
        prefix: str = "",
        partial: bool = False,
    ) -> Self:
        """With the checkpoint's ``names`` of its two linear layers. ``prefix`` is prepended to its roles; ``partial``:
        see :class:`~llmk.tree.Linear`."""
        up, down = (f"{at}.{name}" for name in names)
        return cls(
            at=at,
            up=Linear.column(up, f"{prefix}up", hidden_size, inner_size, bias=bias),
            down=Linear.row(down, f"{prefix}down", inner_size, hidden_size, bias=bias, partial=partial),
            activation=activation,
            xielu=Xielu(at=f"{at}.act_fn") if activation == "xielu" else None,
        )

    @property
    def prefix(self) -> str:
        """What its roles start with."""
        return self.up.role.removesuffix("up")

    def own_ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        if self.xielu is not None:
            size = {"intermediate_size": self.down.size}
            return (OpFacts(site=f"{self.prefix}xielu", op="xielu", facts=size, divided=("intermediate_size",)),)
        facts = {"intermediate_size": self.down.size, "activation": self.activation}
        return (OpFacts(site=f"{self.prefix}activate", op="activate", facts=facts, divided=("intermediate_size",)),)

    @property
    def follower(self) -> Linear | None:
        return self.down if self.down.adapters is None and self.xielu is None else None

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, down=partial(self.down))

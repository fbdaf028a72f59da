"""The gated feed-forward block (MLP)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.linear import Linear
from llmk.nn.norm import AddRMSNorm, NormedLinear

if TYPE_CHECKING:
    from llmk.nn.build import Build


class GatedLinears:
    """The two linear layers of ``down(act(gate(x)) * up(x))``: gate and up packed into one, and down. ``partial``
    applies to down, see :class:`~llmk.nn.Linear`."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        gate_up_site: str = "gate_up",
        down_site: str = "down",
        partial: bool = False,
    ) -> None:
        self.gate_up = Linear(
            build,
            f"{prefix}.gate_up_proj",
            hidden_size,
            (intermediate_size, intermediate_size),
            site=gate_up_site,
            parts=("gate_proj", "up_proj"),
            bias=bias,
            parallel="column",
        )
        self.down = Linear(
            build,
            f"{prefix}.down_proj",
            intermediate_size,
            (hidden_size,),
            site=down_site,
            bias=bias,
            parallel="row",
            partial=partial,
        )


class MLP:
    """``down(activate(up(x)))``, without a gate. The activation, a name in
    ``llmk.reference.activations.PLAIN_ACTIVATIONS``, is the op at ``site``. ``names`` are the checkpoint's names of the
    two linear layers."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        names: tuple[str, str] = ("up_proj", "down_proj"),
        bias: bool = False,
        site: str = "activate",
        up_site: str = "up",
        down_site: str = "down",
        partial: bool = False,
    ) -> None:
        up, down = (f"{prefix}.{name}" for name in names)
        self._up = Linear(build, up, hidden_size, (intermediate_size,), site=up_site, bias=bias, parallel="column")
        self._activate = build.kernel("op", site)
        self._activation = activation
        self._down = Linear(
            build,
            down,
            intermediate_size,
            (hidden_size,),
            site=down_site,
            bias=bias,
            parallel="row",
            partial=partial,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        return self._down(self._activate(self._up(x), self._activation))


class TokenGate:
    """Scales what ``block`` returns by a sigmoid gate with one value per token, which a linear layer at ``gate_site``
    computes (shared experts of Qwen2-MoE, arXiv:2407.10671). With tensor parallelism, ``block`` may return an addend of
    a sum."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        block: Callable[[Tensor], Tensor],
        hidden_size: int,
        *,
        gate_site: str = "shared_gate",
        site: str = "shared_sigmoid_gate",
    ) -> None:
        self._block = block
        self._linear = Linear(build, prefix, hidden_size, (1,), site=gate_site)
        self._gate = build.kernel("op", site)

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        out: Tensor = self._gate(self._block(x), self._linear(x))
        return out


class GatedMLP:
    """A gated MLP. The op at ``site`` computes the gate and up projection with the activation, whose parameters are
    ``activation_options`` (``llmk.reference.activations.GatedOptions``); the down projection follows. ``options`` are
    those of :class:`GatedLinears`."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        site: str = "gate_up_silu",
        gate_up_site: str = "gate_up",
        activation_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._activation_options = dict(activation_options or {})
        self._op = build.kernel("op", site, linear=gate_up_site)
        self._linears = GatedLinears(
            build, prefix, hidden_size, intermediate_size, gate_up_site=gate_up_site, **options
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        gate_up = self._linears.gate_up
        return self._linears.down(self._op(x, gate_up.weight, gate_up.bias, **self._activation_options))


class NormedMLP:
    """A norm and a gated MLP. The op at ``site`` computes the norm, the gate and up projection, and the activation,
    whose parameters are ``activation_options``. ``options`` are those of :class:`GatedLinears`."""

    def __init__(
        self,
        build: Build,
        norm: AddRMSNorm,
        prefix: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        site: str = "norm_gate_up_silu",
        gate_up_site: str = "gate_up",
        activation_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._linears = GatedLinears(
            build, prefix, hidden_size, intermediate_size, gate_up_site=gate_up_site, **options
        )
        sites = {"site": site, "linear_site": gate_up_site}
        self._gated = NormedLinear(build, norm, self._linears.gate_up, **sites, options=activation_options)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """As :class:`~llmk.nn.AddRMSNorm`, but the first result is the MLP's output for the normed sum."""
        gated, residual = self._gated(x, residual)
        return self._linears.down(gated), residual

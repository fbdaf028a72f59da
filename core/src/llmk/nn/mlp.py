"""The gated feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.linear import Linear
from llmk.nn.norm import AddRMSNorm, NormedProduct

if TYPE_CHECKING:
    from llmk.nn.build import Build


class GatedProducts:
    """The two products of ``down(act(gate(x)) * up(x))``, of which gate and up are one. ``partial`` is that of the last
    one, see :class:`~llmk.nn.Linear`."""

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


class GatedMLP:
    """The product with gate and up, and the activation, by the op at ``site``; then the last product. ``options`` are
    those of :class:`GatedProducts`."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        site: str = "gate_up_silu",
        gate_up_site: str = "gate_up",
        **options: Any,
    ) -> None:
        self._op = build.kernel("op", site, linear=gate_up_site)
        self._products = GatedProducts(
            build, prefix, hidden_size, intermediate_size, gate_up_site=gate_up_site, **options
        )

    def __call__(self, x: Tensor) -> Tensor:
        """``[tokens, hidden]`` to the same."""
        gate_up = self._products.gate_up
        return self._products.down(self._op(x, gate_up.weight, gate_up.bias))


class NormedMLP:
    """A norm and a gated block. The norm, the product with gate and up, and the activation, are the op at ``site``.
    ``options`` are those of :class:`GatedProducts`."""

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
        **options: Any,
    ) -> None:
        self._products = GatedProducts(
            build, prefix, hidden_size, intermediate_size, gate_up_site=gate_up_site, **options
        )
        self._gated = NormedProduct(build, norm, self._products.gate_up, site=site, linear_site=gate_up_site)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """As :class:`~llmk.nn.AddRMSNorm`, but that the first is what the block makes of the normed sum."""
        gated, residual = self._gated(x, residual)
        return self._products.down(gated), residual

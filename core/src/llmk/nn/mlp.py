"""The gated feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from llmk.nn.linear import Linear

if TYPE_CHECKING:
    from llmk.nn.build import Build


class GatedMLP:
    """``down(act(gate(x)) * up(x))``. The product with gate and up, and the activation, are one op.

    ``partial`` is that of the last product, see :class:`~llmk.nn.Linear`.
    """

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        site: str = "gate_up_silu",
        gate_up_site: str = "gate_up",
        down_site: str = "down",
        partial: bool = False,
    ) -> None:
        self._op = build.kernel("op", site, linear=gate_up_site)
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

    def __call__(self, x: Tensor) -> Tensor:
        """``[tokens, hidden]`` to the same."""
        return self.down(self._op(x, self.gate_up.weight, self.gate_up.bias))

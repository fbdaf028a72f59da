"""A GEMM with int8 weights in groups that never holds the whole weight widened.

Outputs are computed a panel at a time: as many rows of the weight as fit into a scratch of a fixed size are widened,
which stays in the processor's cache, and multiplied. A head with 150,000 outputs then takes the memory of one panel.
Weights whose inputs are in another order stay so: the activations are put into that order, once for all panels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SCRATCH = 1 << 20
"""Elements of the widened panel."""


@dataclass(frozen=True, slots=True)
class PanelWeight:
    """``values`` int8 ``[out, in]``; ``scale`` ``[out, groups]`` in the checkpoint's dtype; ``zero`` the same, the
    value that represents zero, or ``None``: 0. ``order`` int64 ``[in]``: the input of each column; ``None``: in
    order."""

    values: Tensor
    scale: Tensor
    zero: Tensor | None
    order: Tensor | None

    @property
    def panel(self) -> int:
        """Rows of a panel."""
        return max(1, SCRATCH // self.values.shape[1])

    def widened(self, rows: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Some rows, their columns as they are stored, rounded once."""
        scale = self.scale[rows].float()
        groups = self.values[rows].view(*scale.shape, -1).float()
        if self.zero is not None:
            groups.sub_(self.zero[rows].float()[..., None])
        return groups.mul_(scale[..., None]).flatten(1).to(dtype)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """As ``llmk.api.LooksUp.rows``: with their columns in the order of inputs."""
        found = self.widened(index, dtype)
        return found if self.order is None else torch.empty_like(found).index_copy_(1, self.order, found)


def prepare(parameters: Mapping[str, Tensor]) -> PanelWeight:
    """Keeps the parameters of the format ``int8_group`` as they are."""
    return PanelWeight(
        parameters["weight"],
        parameters["weight_scale"],
        parameters.get("weight_zero_point"),
        parameters.get("weight_order"),
    )


def panels(x: Tensor, weight: PanelWeight, bias: Tensor | None) -> Tensor:
    """``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype; ``bias`` is ``[out]``."""
    outputs = len(weight.values)
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    out = x.new_empty(len(x), outputs)
    for first in range(0, outputs, weight.panel):
        rows = slice(first, min(first + weight.panel, outputs))
        out[:, rows] = F.linear(x, weight.widened(rows, x.dtype), None if bias is None else bias[rows])
    return out

"""GEMMs of 8-bit weights with scales per group of inputs (``int8_group``), which lie group by group.

In the layout ``quay_groups``, the levels of one group of inputs are a matrix ``[out, G]``, and its scales a row
``[out]``. A panel of outputs is widened at a time, so that a call needs little memory beside its result, no matter how
large the layer is; each panel is then multiplied with all rows of the step, so that weights are read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PANEL = 1 << 22
"""Elements of a weight that are widened at a time, unless a single output has more."""


@dataclass(frozen=True, slots=True)
class GroupsFirst:
    """``values`` is int8 ``[groups, out, G]``; ``scale`` ``[groups, out]`` in the dtype of the checkpoint; ``zero`` of
    the same shape, the level that represents zero, or ``None``: 0. With ``order``, int64 ``[in]``, element ``i`` of
    the groups, one behind the other, belongs to input ``order[i]``; ``None``: they are in order."""

    values: Tensor
    scale: Tensor
    zero: Tensor | None
    order: Tensor | None

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return self.values.shape[1]

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return self.values.shape[0] * self.values.shape[2]

    def widened(self, index: slice | Tensor) -> Tensor:
        """Some rows of the weight, float32 ``[rows, in]``, in the order of the groups."""
        wide = self.values[:, index].float()
        if self.zero is not None:
            wide -= self.zero[:, index, None].float()
        wide *= self.scale[:, index, None].float()
        return wide.transpose(0, 1).flatten(1)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """As :meth:`llmk.api.LooksUp.rows`."""
        rows = self.widened(index).to(dtype)
        return rows if self.order is None else torch.empty_like(rows).index_copy_(1, self.order, rows)


def prepare(parameters: dict[str, Tensor]) -> GroupsFirst:
    """The parameters of ``int8_group`` (``llmk.reference.quantized_weight``), group by group."""
    weight, scale = parameters["weight"], parameters["weight_scale"]
    zero, order = parameters.get("weight_zero_point"), parameters.get("weight_order")
    groups = weight.reshape(weight.shape[0], scale.shape[1], -1)
    return GroupsFirst(
        groups.transpose(0, 1).contiguous(),
        scale.t().contiguous(),
        None if zero is None else zero.t().contiguous(),
        None if order is None else order.long(),
    )


def linear(x: Tensor, weight: GroupsFirst, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, ``[tokens, in]`` to ``[tokens, out]``: products and sums in float32, rounded once."""
    rows = x.float()
    if weight.order is not None:
        rows = rows.index_select(1, weight.order)
    out = x.new_empty(x.shape[0], weight.out_features)
    step = max(1, PANEL // weight.in_features)
    for start in range(0, weight.out_features, step):
        panel = slice(start, min(start + step, weight.out_features))
        sums = rows @ weight.widened(panel).t()
        if bias is not None:
            sums += bias[panel].float()
        out[:, panel] = sums
    return out

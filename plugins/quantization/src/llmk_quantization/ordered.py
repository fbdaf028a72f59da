"""Groups of inputs that are no neighbours: quantizers that go through inputs by the size of their activations store
the index of each input's group (``g_idx``)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from llmk.api import CheckpointError, StoredTensor

GROUP_INDEX = "weight_g_idx"
"""The name of that index among the presented tensors of a module: int32 ``[1, in]``."""


def presented(index: StoredTensor) -> StoredTensor:
    """The index as a tensor with a row per module, so that layers pack those of several modules."""
    module = index.name.rpartition(".")[0]
    return replace(index, name=f"{module}.{GROUP_INDEX}", shape=(1, *index.shape))


def order_of(layer: str, index: Tensor, inputs: int, groups: int) -> Tensor | None:
    """The inputs in the order of their groups, int64 ``[in]``; ``None`` if the index says that there is no order, or if
    this rank has a part of inputs that are in order.

    Args:
        layer: its name, for errors.
        index: the index of each projection of the layer, ``[projections, in]``.
        inputs, groups: those of the weight, of which this rank may have a part.

    Raises:
        CheckpointError: projections of the layer have different orders, groups have different sizes, or the weight is
            split along its inputs.
    """
    if (index[0] < 0).all():
        return None  # compressed-tensors' value for "not ordered"
    if (index != index[:1]).any():
        raise CheckpointError(
            f"{layer} packs projections whose inputs are ordered differently (g_idx)",
            hint="use a checkpoint that was quantized without desc_act or actorder",
        )
    size, whole = inputs // groups, index.shape[1]
    counts = torch.bincount(index[0].clamp(min=0), minlength=whole // size)
    if (counts != size).any() or int(index.min()) < 0:
        raise CheckpointError(
            f"{layer} has a g_idx whose groups have {sorted(set(counts.tolist()))} inputs, not all {size}",
            hint="check that quantization_config in config.json belongs to these weights",
        )
    order = index[0].argsort(stable=True)
    if whole == inputs:
        return order
    if (order != torch.arange(whole, device=order.device)).any():
        raise CheckpointError(
            f"{layer} orders its inputs by activation (desc_act, actorder), so groups of {size} inputs"
            " can't be split between processes",
            hint="lower parallel.tensor, or use a checkpoint that was quantized without desc_act or actorder",
        )
    return None

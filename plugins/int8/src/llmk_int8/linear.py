"""Products with 8-bit weights that are not brought to another layout. Scales are applied to the sums, of which there
are fewer than of weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.quantized_weight import ScaledWeight

_ALIGNED = 64
"""Bytes of a vector."""


def linear_packed(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype, by torch's product for bfloat16
    and 8-bit weights, which adds up in float32. Its scales are rounded to bfloat16."""
    # It crashes on rows with gaps between them, or that begin elsewhere than memory does that torch allocates.
    x = x.clone() if x.data_ptr() % _ALIGNED else x.contiguous()
    out: Tensor = torch.ops.aten._weight_int8pack_mm(x, weight.values, weight.scale.view(-1).to(x.dtype))
    return out if bias is None else out.add_(bias)


def linear_widened(x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
    """The same for float32, too. 8-bit integers lose nothing when they become either; in float16, sums that are not
    scaled yet would overflow."""
    out = F.linear(x, weight.values.to(x.dtype)).mul_(weight.scale.view(-1))
    return out if bias is None else out.add_(bias)

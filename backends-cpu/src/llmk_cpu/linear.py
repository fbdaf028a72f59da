"""oneDNN's product, on weights that were brought into its blocked layout at load."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

if not torch.backends.mkldnn.is_available():
    raise ImportError("this build of torch has no oneDNN (torch.backends.mkldnn.is_available() is False)")

_linear_pointwise = torch.ops.mkldnn._linear_pointwise.default
_DECODE_ROWS = 1
"""Rows of the product that the layout is chosen for. oneDNN's layout for one row is no slower than others for many."""


def prepack(parameters: Mapping[str, Tensor]) -> Tensor:
    """Brings ``parameters["weight"]`` (``[out, in]``) into oneDNN's blocked layout: an opaque copy of equal size."""
    return torch.ops.mkldnn._reorder_linear_weight(parameters["weight"], _DECODE_ROWS)  # type: ignore[no-any-return]


def linear_prepacked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, ``[tokens, in]`` to ``[tokens, out]``; ``weight`` is what :func:`prepack` made."""
    return _linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]

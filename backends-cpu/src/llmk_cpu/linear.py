"""oneDNN's GEMM, with weights in its blocked layout, which are converted when the model loads."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from llmk.reference.tiles import TiledWeight, invariant_sizes

if not torch.backends.mkldnn.is_available():
    raise ImportError("this build of torch has no oneDNN (torch.backends.mkldnn.is_available() is False)")

_linear_pointwise = torch.ops.mkldnn._linear_pointwise.default
_DECODE_ROWS = 1
"""Rows (M) for which oneDNN chooses the layout. Its layout for one row is not slower for many rows than others."""


def prepack(parameters: Mapping[str, Tensor]) -> Tensor:
    """Converts ``parameters["weight"]`` (``[out, in]``) to oneDNN's blocked layout: an opaque copy of equal size."""
    return _pack(parameters["weight"])


def prepack_invariant(parameters: Mapping[str, Tensor]) -> TiledWeight:
    """The same for ``llmk.reference.linear:linear_invariant``, with the tile sizes that are batch-invariant."""
    weight = parameters["weight"]
    sizes = invariant_sizes(_times_packed, weight.shape, weight.dtype, weight.device, _pack)
    return TiledWeight(_times_packed, _pack(weight), sizes)


def linear_prepacked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, ``[tokens, in]`` to ``[tokens, out]``; ``weight`` is the result of :func:`prepack`."""
    return _linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def _times_packed(x: Tensor, weight: Tensor) -> Tensor:
    return linear_prepacked(x, weight, None)


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, _DECODE_ROWS)  # type: ignore[no-any-return]

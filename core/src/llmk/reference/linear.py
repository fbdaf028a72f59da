"""Linear kernels: torch's GEMM, a batch-invariant GEMM, and GEMMs with quantized weights that are dequantized in every
call."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.reference.quantized_weight import GroupedWeight, PackedWeight, ScaledWeight
from llmk.reference.tiles import TiledWeight, in_tiles, tiled


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]`` to ``[tokens, out]`` in ``x``'s dtype; ``weight`` is ``[out, in]``,
    ``bias`` ``[out]``.

    torch picks its kernel by the number of rows, so a row's result is the same in any batch only up to rounding.
    """
    return F.linear(x, weight, bias)


def per_head_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """``x[:, h] @ weight[h]`` for every head: ``[tokens, heads, in]`` to ``[tokens, heads, out]`` in ``x``'s dtype;
    ``weight`` is ``[heads, in, out]``."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def per_head_matmul_invariant(x: Tensor, weight: Tensor) -> Tensor:
    """Batch-invariant :func:`per_head_matmul`: computed row by row, so a row's result is bit-identical in any
    batch."""
    return in_tiles(torch.bmm, x.transpose(0, 1), weight, (1,)).transpose(0, 1)


def prepare_plain(parameters: Mapping[str, Tensor]) -> Tensor:
    """The unchanged weight: ``parameters["weight"]``, ``[out, in]``."""
    return parameters["weight"]


def linear_invariant(x: Tensor, weight: TiledWeight, bias: Tensor | None) -> Tensor:
    """Batch-invariant :func:`linear`: computed in tiles of rows (:mod:`llmk.reference.tiles`), so a row's result is
    bit-identical in any batch. The bias is added after the GEMM's result is rounded."""
    out = weight.multiply(x)
    return out if bias is None else out + bias


def prepare_invariant(parameters: Mapping[str, Tensor]) -> TiledWeight:
    """``parameters["weight"]``, ``[out, in]``, with the tile sizes that are batch-invariant for it."""
    return tiled(parameters["weight"])


def linear_dequantized(x: Tensor, weight: ScaledWeight | GroupedWeight | PackedWeight, bias: Tensor | None) -> Tensor:
    """:func:`linear_invariant` with the weight first dequantized to ``x``'s dtype; compared with this, tiling costs
    little."""
    return linear_invariant(x, tiled(weight.dequantize(x.dtype)), bias)

"""Low-rank adapters (LoRA, arXiv:2106.09685), of which each token has its own, or none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from llmk.reference.tiles import tiled


def add_adapters(
    y: Tensor, x: Tensor, index: Tensor, a: Tensor, b: Tensor, scale: Tensor, sizes: tuple[int, ...]
) -> Tensor:
    """Adds, in place, ``scale * (x @ a.T) @ b.T`` of each token's adapter to ``y``, which is returned.

    Each of the ``parts`` of a packed layer's outputs has a matrix ``a`` of its own. All adapters are multiplied with
    all tokens, and results of adapters that a token does not have count as zero, so nothing depends on values of
    ``index``, and the step can be recorded.

    Args:
        y: ``[tokens, out]``, what the layer computed.
        x: ``[tokens, in]``, the layer's input, in ``y``'s dtype.
        index: int64 ``[tokens]``, the number of each token's adapter; -1: none.
        a: ``[adapters, parts, rank, in]``; adapters of lower rank are padded with zeros.
        b: ``[adapters, out, rank]``.
        scale: float32 ``[adapters, parts]``.
        sizes: the output features of each part, ``out`` in all.
    """
    return _add(y, x, index, a, b, scale, sizes, _multiply)


def add_adapters_invariant(
    y: Tensor, x: Tensor, index: Tensor, a: Tensor, b: Tensor, scale: Tensor, sizes: tuple[int, ...]
) -> Tensor:
    """Batch-invariant :func:`add_adapters`: computed in tiles of rows (:mod:`llmk.reference.tiles`)."""
    return _add(y, x, index, a, b, scale, sizes, lambda x, weight: tiled(weight).multiply(x))


def _add(
    y: Tensor,
    x: Tensor,
    index: Tensor,
    a: Tensor,
    b: Tensor,
    scale: Tensor,
    sizes: tuple[int, ...],
    multiply: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    adapters, parts, rank, _ = a.shape
    low = multiply(x, a.flatten(0, 2)).view(-1, adapters, parts, rank)
    own = index[:, None] == torch.arange(adapters, device=index.device)
    low = torch.where(own[:, :, None, None], low * scale[:, :, None], 0).to(y.dtype)
    pieces = zip(low.unbind(2), y.split_with_sizes(sizes, 1), b.split_with_sizes(sizes, 1), strict=True)
    for of_part, out, up in pieces:
        out += multiply(of_part.flatten(1), up.transpose(0, 1).flatten(1))
    return y


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T

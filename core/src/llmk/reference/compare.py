"""Compares two kernels' results: their relative error, and the tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_TOLERANCE = {"float32": 1e-3}
_TOLERANCE_16_BIT = 2e-2


def tolerance(dtype: str) -> float:
    """The largest relative error (2-norm) between two correct kernels in an engine of ``dtype``."""
    return _TOLERANCE.get(dtype, _TOLERANCE_16_BIT)


def tensors_of(result: Any) -> Iterator[Tensor]:
    """The tensors in a kernel's result: one, several, or none."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from tensors_of(part)


def relative_error(actual: Any, expected: Any) -> Tensor:
    """The relative error of ``actual``: the largest over the result's tensors, float32 ``[]`` on their device, without
    a synchronization. For floating-point tensors, the 2-norm of the difference divided by the 2-norm of ``expected``;
    for others 1 if any element differs, else 0. Infinities must be equal; the error is NaN if one result has a NaN.

    Raises:
        ValueError: the results differ in shape.
    """
    pairs = list(zip(tensors_of(actual), tensors_of(expected), strict=True))
    for one, other in pairs:
        if one.shape != other.shape:
            raise ValueError(f"the result has shape {list(one.shape)}, expected {list(other.shape)}")
    return torch.stack([_error(one, other) for one, other in pairs]).amax()


def _error(actual: Tensor, expected: Tensor) -> Tensor:
    if not expected.is_floating_point():
        return (actual != expected).any().float()
    actual, expected = actual.float(), expected.float()
    difference = torch.where(actual == expected, 0.0, actual - expected)
    scale = expected.masked_fill(expected.isinf(), 0.0)
    error: Tensor = torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(scale).clamp(min=1e-30)
    return error

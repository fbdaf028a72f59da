"""How far two kernels' results are apart, and how far they may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_TOLERANCE = {"float32": 1e-3}
_ROUNDED = 2e-2


def tolerance(dtype: str) -> float:
    """The relative difference in the 2-norm that rounding explains between kernels of an engine of ``dtype``."""
    return _TOLERANCE.get(dtype, _ROUNDED)


def tensors_of(result: Any) -> Iterator[Tensor]:
    """The tensors in a kernel's result: one, several, or none."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from tensors_of(part)


def relative_error(actual: Any, expected: Any) -> Tensor:
    """The largest difference between the tensors of two results, float32 ``[]`` on their device, which is not waited
    for: of floating-point numbers the 2-norm relative to what is ``expected``; of others 1 where any is unequal, else
    0. Infinities must be equal; NaN where one result has a NaN.

    Raises:
        ValueError: where the two differ in shape.
    """
    pairs = list(zip(tensors_of(actual), tensors_of(expected), strict=True))
    for one, other in pairs:
        if one.shape != other.shape:
            raise ValueError(f"a result of shape {list(one.shape)} where {list(other.shape)} is expected")
    return torch.stack([_error(one, other) for one, other in pairs]).amax()


def _error(actual: Tensor, expected: Tensor) -> Tensor:
    if not expected.is_floating_point():
        return (actual != expected).any().float()
    actual, expected = actual.float(), expected.float()
    difference = torch.where(actual == expected, 0.0, actual - expected)
    scale = expected.masked_fill(expected.isinf(), 0.0)
    error: Tensor = torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(scale).clamp(min=1e-30)
    return error

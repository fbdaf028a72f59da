"""The tolerances of all comparisons.

The expected result is computed on the host in float32 or float64 from the same inputs, rounded as the kernel got them.
A bound covers the rounding of the result, and of intermediates that a kernel may round to its dtype (attention scores,
an expert's activations), as long as accumulators are float32: accumulating a few thousand numbers in 16 bits costs a
percent or more and fails, as do float32 GEMMs in narrower formats. Below a dtype's smallest normal number, its values
are evenly spaced: rounding to the nearest one may cost half of that distance, which is no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Bound:
    """``norm``: bound of the difference's 2-norm, relative to that of the expected result. ``largest``: bound of a
    single element's difference, relative to its magnitude and the root mean square of all."""

    norm: float
    largest: float


BOUNDS = {
    torch.float64: Bound(1e-5, 1e-4),
    torch.float32: Bound(1e-5, 1e-4),  # unit roundoff 6e-8, times the root of some thousand additions
    torch.float16: Bound(1.5e-3, 8e-3),  # unit roundoff 5e-4, a few times
    torch.bfloat16: Bound(8e-3, 4e-2),  # unit roundoff 4e-3, a few times
    torch.float8_e4m3fn: Bound(4e-2, 0.13),  # unit roundoff 6e-2; a neighbour is 1/8 away
    torch.float8_e5m2: Bound(8e-2, 0.26),
}
"""Bounds by the dtype of a result."""

ROUNDED_INPUTS = Bound(4e-2, 0.3)
"""Bound of GEMMs with fp8 weights, whose kernels may quantize the activations to fp8 too."""

ROUNDED_TWICE = Bound(2 * ROUNDED_INPUTS.norm, 2 * ROUNDED_INPUTS.largest)
"""The same of two GEMMs in a row, as experts have."""


def chained(dtype: torch.dtype) -> Bound:
    """The bound of composite ops that round intermediates: the errors add up, and remain where terms cancel."""
    bound = BOUNDS[dtype]
    return Bound(2 * bound.norm, 4 * bound.largest)


def looser(bound: Bound, dtype: torch.dtype) -> Bound:
    """``bound``, or that of composite ops for a tensor that is kept in ``dtype``, if that is looser."""
    return max(bound, chained(dtype), key=lambda each: each.norm) if dtype in BOUNDS else bound


class Right(NamedTuple):
    """The expected result: ``values``, compared in float64, in a tensor of ``dtype``."""

    values: Tensor
    dtype: torch.dtype


def check(actual: Any, right: Right, what: str, bound: Bound | None = None) -> float:
    """Compares a tensor with the expected one; returns the relative error in the 2-norm.

    Integers and booleans must be equal. Infinities and NaN must be at the same positions; an unexpected NaN never
    passes.

    Args:
        what: what is compared, for the message.
        bound: overrides that of :data:`BOUNDS` for the dtype.

    Raises:
        AssertionError: with what was expected, what was found, and the first place where they differ.
    """
    assert isinstance(actual, Tensor), f"{what}: expected a tensor, got {type(actual).__name__}"
    shape = tuple(right.values.shape)
    assert tuple(actual.shape) == shape, f"{what}: expected shape {shape}, got {tuple(actual.shape)}"
    assert actual.dtype == right.dtype, f"{what}: expected {right.dtype}, got {actual.dtype}"
    found, wanted = actual.detach().cpu(), right.values.detach().cpu()
    if not right.dtype.is_floating_point:
        _check_places(found != wanted, found, wanted, f"{what}: not equal")
        return 0.0
    found, wanted = found.to(torch.float64), wanted.to(torch.float64)
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    unlike = ~same & ~(found.isfinite() & wanted.isfinite())
    _check_places(unlike, found, wanted, f"{what}: not finite where it should be, or finite where it should not")
    found, wanted = (torch.where(wanted.isfinite(), x, 0.0) for x in (found, wanted))
    bound = bound or BOUNDS[right.dtype]
    difference = ((found - wanted).abs() - _to_nearest(right.dtype)).clamp_min(0.0)
    size = wanted.square().mean().sqrt() if wanted.numel() else torch.zeros(())
    tiny = torch.finfo(torch.float32).tiny
    allowed = bound.largest * (wanted.abs() + size) + tiny
    error = float(difference.norm() / (wanted.norm() + tiny))
    if not error <= bound.norm:
        worst = f"{what}: relative error {error:.1e} in the 2-norm, {bound.norm:g} at most in {right.dtype}"
        typical = bound.norm * (wanted.abs() + size)
        _check_places((difference > typical) | (difference == difference.max()), found, wanted, worst)
    _check_places(difference > allowed, found, wanted, f"{what}: single elements off by more than {bound.largest:g}")
    return error


def _to_nearest(dtype: torch.dtype) -> float:
    """Half of the distance between subnormal numbers."""
    facts = torch.finfo(dtype)
    return facts.smallest_normal * facts.eps / 2


def check_same(actual: Tensor, expected: Tensor, what: str) -> None:
    """Compares two tensors bit for bit. Raises ``AssertionError`` with the first place where they differ."""
    if expected.numel() and actual.stride() != expected.stride():
        actual, expected = actual.contiguous(), expected.contiguous()
    _check_places(bits(actual) != bits(expected), actual, expected, f"{what}: not bit-identical")


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values; a NaN is the same as a NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, on the host."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().cpu().contiguous().view(widths[tensor.element_size()])


def _check_places(wrong: Tensor, found: Tensor, wanted: Tensor, complaint: str) -> None:
    if not bool(wrong.any()):
        return
    place = tuple(wrong.nonzero()[0].tolist())
    found, wanted = (x.detach().cpu() for x in (found, wanted))
    many = int(wrong.sum())
    raise AssertionError(
        f"{complaint}; first of {many} of {wrong.numel()} elements at {list(place)}:"
        f" expected {wanted[place].item():.6g}, got {found[place].item():.6g}"
    )

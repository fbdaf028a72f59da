"""Counter-based random numbers: a pure function of seed and position, the same on every device and in every batch."""

from __future__ import annotations

from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def uniform_bits(seeds: Tensor, positions: Tensor, bits: int) -> Tensor:
    """A uniform integer below ``2 ** bits`` for each pair, int64 like ``seeds`` and ``positions``; ``bits`` is at
    most 63.

    Two rounds of SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014),
    the seed mixed before the position is added, so that neighbouring seeds give unrelated sequences.
    """
    return _shift(_mix(_mix(seeds + _GOLDEN) + positions * _GOLDEN), 64 - bits)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, count: int) -> Tensor:
    """A logical shift to the right, which torch lacks for int64."""
    return (x >> count) & ((1 << (64 - count)) - 1)

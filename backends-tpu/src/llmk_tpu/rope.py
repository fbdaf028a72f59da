"""Inverse frequencies of rotary embeddings, from the settings that a tree states.

``llmk.reference.rope.scaling`` has the same formulas in torch, and more types; a test compares the two. All arithmetic
is float32, as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from llmk.api import CheckpointError
from llmk.tree import Rope

Floats = npt.NDArray[np.float32]
Frequencies = tuple[Floats, float]
"""Inverse frequencies, float32 ``[rotary_dim / 2]``, and the factor of cosines and sines."""


def inverse_frequencies(rope: Rope) -> Frequencies:
    """The frequencies of a tree's rotary embedding, whose type :data:`FREQUENCIES` has.

    Raises:
        CheckpointError: it lacks a parameter that its type needs.
    """
    own = rope.parameters
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    plain = (1 / np.float32(own["rope_theta"]) ** exponents).astype(np.float32)
    try:
        return FREQUENCIES[own["rope_type"]](plain, own, rope)
    except KeyError as missing:
        raise CheckpointError(
            f"rope_parameters of type {own['rope_type']!r} lack {missing}; they have {', '.join(own)}",
            hint="compare the checkpoint's config.json with the one that the model's authors publish",
        ) from missing


def _default(plain: Floats, own: Mapping[str, Any], rope: Rope) -> Frequencies:
    return plain, 1.0


def _linear(plain: Floats, own: Mapping[str, Any], rope: Rope) -> Frequencies:
    """Position interpolation (arXiv:2306.15595)."""
    return plain / np.float32(own["factor"]), 1.0


def _llama3(plain: Floats, own: Mapping[str, Any], rope: Rope) -> Frequencies:
    """Llama 3.1: long wavelengths are multiplied by ``factor``, short ones are kept, those between are interpolated."""
    low, high = own["low_freq_factor"], own["high_freq_factor"]
    rotations = _original_positions(own, rope) * plain / np.float32(2 * math.pi)
    return _blend(plain, own["factor"], np.clip((rotations - low) / (high - low), 0, 1)), 1.0


def _yarn(plain: Floats, own: Mapping[str, Any], rope: Rope) -> Frequencies:
    """YaRN (arXiv:2309.00071): high frequencies are kept, low ones interpolated, with a ramp between."""
    original = _original_positions(own, rope)
    factor = float(own["factor"]) if own.get("factor") is not None else rope.positions / original
    size, base = rope.rotary_dim, own["rope_theta"]

    def pair_of(rotations: float) -> float:
        """The pair that makes this many rotations within the original context."""
        return float(size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base)))

    low, high = pair_of(own.get("beta_fast") or 32), pair_of(own.get("beta_slow") or 1)
    if own.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high += 0.001 if low == high else 0
    ramp = np.clip((np.arange(size // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    return _blend(plain, factor, 1 - ramp), _yarn_scaling(own, factor)


def _yarn_scaling(own: Mapping[str, Any], factor: float) -> float:
    if own.get("attention_factor") is not None:
        return float(own["attention_factor"])

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    over, under = own.get("mscale"), own.get("mscale_all_dim")
    return mscale(over) / mscale(under) if over and under else mscale(1.0)


def _original_positions(own: Mapping[str, Any], rope: Rope) -> int:
    """Context length before its extension."""
    return int(own.get("original_max_position_embeddings") or rope.positions)


def _blend(plain: Floats, factor: float, kept: Floats) -> Floats:
    """``kept`` of each frequency, and the rest of it divided by ``factor``."""
    blended: Floats = ((1 - kept) * plain / np.float32(factor) + kept * plain).astype(np.float32)
    return blended


FREQUENCIES: Mapping[str, Callable[[Floats, Mapping[str, Any], Rope], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""By ``rope_type``."""

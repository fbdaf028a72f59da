"""Inverse frequencies of rotary position embeddings, for every scaling type of ``transformers`` 5.

All arithmetic is float32 in the order that models were trained with, so that angles agree with ``transformers`` bit
for bit or nearly so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llmk.api.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class _Rope:
    """The inputs of a scaling type. ``rot`` is the number of rotated elements of a head."""

    parameters: Mapping[str, Any]
    head_dim: int
    rot: int
    base: float
    max_position: int
    trained_positions: int

    def __getitem__(self, key: str) -> Any:
        """A parameter that the scaling type requires."""
        value = self.parameters.get(key)
        if value is None:
            kind = rope_type(self.parameters)
            raise CheckpointError(
                f"rope_parameters of type {kind!r} lack {key!r}; they have {', '.join(sorted(self.parameters))}",
                hint="compare the checkpoint's config.json with the one that the model's authors publish",
            )
        return value

    @property
    def original_positions(self) -> int:
        """Context length before its extension."""
        return int(self.parameters.get("original_max_position_embeddings") or self.trained_positions)

    @property
    def extension(self) -> float:
        """The ratio of the extended to the original context length: ``factor``, or else trained divided by original
        length."""
        factor = self.parameters.get("factor")
        return float(factor) if factor is not None else self.trained_positions / self.original_positions


Frequencies = tuple[Tensor, float]
"""Inverse frequencies, float32 ``[rot / 2]``, and the factor of cosines and sines (attention scaling)."""


def inverse_frequencies(
    rope_parameters: Mapping[str, Any],
    head_dim: int,
    max_position: int,
    base: float,
    *,
    trained_positions: int | None = None,
) -> Frequencies:
    """Inverse frequencies for a model that is served with up to ``max_position`` positions.

    Two scaling types depend on the sequence length. ``transformers`` uses the longest sequence of a step, so the
    frequencies of a sequence may change while it is generated. Here, the maximum served length decides once, so that
    cached keys stay valid: ``dynamic`` scales for ``max_position``; ``longrope`` uses its long factors if
    ``max_position`` is greater than the original length.

    Args:
        rope_parameters: the checkpoint's ``rope_parameters`` (or ``rope_scaling``): ``rope_type`` (or ``type``),
            ``rope_theta``, ``partial_rotary_factor`` and the parameters of the type.
        base: used if the parameters have no ``rope_theta``.
        trained_positions: the checkpoint's ``max_position_embeddings``; ``None``: ``max_position``.

    Raises:
        CheckpointError: the scaling type is unknown, or a parameter that it requires is missing.
    """
    kind = rope_type(rope_parameters)
    if kind not in _KINDS:
        raise CheckpointError(
            f"rope_type {kind!r} is unknown; known are {', '.join(sorted(_KINDS))}",
            hint="a model plugin may compute its own table of cosines and sines and pass that to the op 'rope'",
        )
    rope = _Rope(
        parameters=rope_parameters,
        head_dim=head_dim,
        rot=int(head_dim * _number(rope_parameters, "partial_rotary_factor", 1.0)),
        base=_number(rope_parameters, "rope_theta", base),
        max_position=max_position,
        trained_positions=trained_positions or max_position,
    )
    return _KINDS[kind](rope)


def rope_type(rope_parameters: Mapping[str, Any]) -> str:
    """The scaling type, under either of the two keys that checkpoints use; ``"default"`` if there is none."""
    return str(rope_parameters.get("rope_type") or rope_parameters.get("type") or "default")


def _plain(base: float, rot: int) -> Tensor:
    return 1.0 / base ** (torch.arange(0, rot, 2, dtype=torch.float32) / rot)


def _default(rope: _Rope) -> Frequencies:
    return _plain(rope.base, rope.rot), 1.0


def _linear(rope: _Rope) -> Frequencies:
    """Position interpolation (arXiv:2306.15595)."""
    return _plain(rope.base, rope.rot) / rope["factor"], 1.0


def _proportional(rope: _Rope) -> Frequencies:
    """A fraction ``partial_rotary_factor`` of the pairs rotates, with the frequencies of a whole head; the others don't
    rotate."""
    share = _number(rope.parameters, "partial_rotary_factor", 1.0)
    pairs = int(share * rope.head_dim // 2)
    frequencies = torch.zeros(rope.head_dim // 2)
    frequencies[:pairs] = 1.0 / rope.base ** (torch.arange(0, 2 * pairs, 2, dtype=torch.float32) / rope.head_dim)
    return frequencies / _number(rope.parameters, "factor", 1.0), 1.0


def _dynamic(rope: _Rope) -> Frequencies:
    """NTK-aware scaling for the maximum served length; no scaling up to the trained length."""
    factor, rot = rope["factor"], rope.rot
    length = max(rope.max_position, rope.trained_positions)
    stretch = factor * length / rope.trained_positions - (factor - 1)
    return _plain(rope.base * stretch ** (rot / (rot - 2)), rot), 1.0


def _yarn(rope: _Rope) -> Frequencies:
    """YaRN (arXiv:2309.00071): high frequencies are kept, low ones are interpolated, with a ramp between."""
    parameters, rot, factor = rope.parameters, rope.rot, rope.extension

    def pair_of(rotations: float) -> float:
        """The pair that makes this many rotations within the original context."""
        return rot * math.log(rope.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low = pair_of(parameters.get("beta_fast") or 32)
    high = pair_of(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rot - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rot // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    plain = rope.base ** (torch.arange(0, rot, 2, dtype=torch.float32) / rot)
    kept = 1 - ramp
    frequencies = (1.0 / (factor * plain)) * (1 - kept) + (1.0 / plain) * kept
    return frequencies, _yarn_scaling(parameters, factor)


def _yarn_scaling(parameters: Mapping[str, Any], factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator, denominator = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if numerator and denominator:
        return mscale(numerator) / mscale(denominator)
    return mscale(1.0)


def _longrope(rope: _Rope) -> Frequencies:
    """LongRoPE (arXiv:2402.13753): a factor per pair, with one set for the original length and one for longer
    contexts."""
    original = rope.original_positions
    factors = rope["long_factor" if rope.max_position > original else "short_factor"]
    frequencies = 1.0 / (torch.tensor(factors) * rope.base ** (torch.arange(0, rope.rot, 2).float() / rope.rot))
    scaling = rope.parameters.get("attention_factor")
    if scaling is None:
        factor = rope.extension
        scaling = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return frequencies, float(scaling)


def _llama3(rope: _Rope) -> Frequencies:
    """Llama 3.1: wavelengths longer than the original context are multiplied by ``factor``, short ones are kept, those
    between are interpolated."""
    plain = _plain(rope.base, rope.rot)
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope.original_positions
    wavelength = 2 * math.pi / plain
    kept = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / factor + kept * plain, 1.0


def _number(parameters: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = parameters.get(key)
    return float(otherwise if value is None else value)


_KINDS: Mapping[str, Callable[[_Rope], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}

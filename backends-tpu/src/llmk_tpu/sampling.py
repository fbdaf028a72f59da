"""Sampling inside of a step, as ``llmk.reference.sampling`` defines it: a row's token depends on its logits, its seed and
its position only, so it is the same in any batch."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

_WEIGHT_BITS = 24
"""The most likely token has the weight ``2**24``; rounded weights are summed exactly."""
_HALF = 20
_WORD = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Controls(NamedTuple):
    """How the rows of a step are sampled, each ``[rows]``. ``temperature``, ``top_p``, ``min_p``: float32; ``top_k``:
    int32; 0 is off, but for ``top_p``, where 1 is. ``high`` and ``low``: int32, the halves of a row's random number
    (:func:`random_halves`)."""

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    high: Array
    low: Array


def random_halves(seed: int, position: int) -> tuple[int, int]:
    """A uniform number of 40 bits for a seed and a position, in two halves: two rounds of SplitMix64's finaliser
    (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    number = _mix((_mix((seed + _GOLDEN) & _WORD) + position * _GOLDEN) & _WORD) >> (64 - 2 * _HALF)
    return number >> _HALF, number & ((1 << _HALF) - 1)


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def sample(logits: Array, controls: Controls) -> Array:
    """A token for each row, int32 ``[rows]``. Rows with temperature 0 take the most likely token, the lowest id among
    equals; a step in which all do computes nothing else.

    Args:
        logits: float32 ``[rows, vocab]``.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    is_greedy = controls.temperature == 0
    return lax.cond(
        jnp.all(is_greedy),
        lambda: greedy,
        lambda: jnp.where(is_greedy, greedy, _draw(logits, controls)),
    )


def _draw(logits: Array, controls: Controls) -> Array:
    divisor = jnp.where(controls.temperature == 0, 1.0, controls.temperature)[:, None]
    scaled = (logits - logits.max(axis=-1, keepdims=True)) / divisor
    cuts = (controls.top_k > 0) | (controls.top_p < 1)
    floor = lax.cond(
        jnp.any(cuts), lambda: _floor(scaled, controls), lambda: jnp.full(scaled.shape[:1], -jnp.inf, jnp.float32)
    )
    floor = jnp.maximum(floor, jnp.log(controls.min_p))
    kept = jnp.where(scaled < floor[:, None], -jnp.inf, scaled)
    with jax.enable_x64(True):
        cumulative = jnp.cumsum(_weights(kept), axis=-1)
        total = cumulative[:, -1]
        high, low = controls.high.astype(jnp.int64), controls.low.astype(jnp.int64)
        target = (high * total + ((low * total) >> _HALF)) >> _HALF
        chosen = jnp.sum(cumulative <= target[:, None], axis=-1).astype(jnp.int32)
    # Logits with NaN have no distribution; the id must still be valid, because the next step embeds it.
    return jnp.minimum(chosen, logits.shape[1] - 1)


def _floor(scaled: Array, controls: Controls) -> Array:
    """The least logit that top-k and top-p keep, float32 ``[rows]``; the greatest of ``scaled`` is 0 in each row."""
    vocab = scaled.shape[1]
    values = -jnp.sort(-scaled, axis=-1)
    kept = jnp.where(controls.top_k > 0, jnp.minimum(controls.top_k, vocab), vocab)
    with jax.enable_x64(True):
        weights = _weights(values)
        cumulative = jnp.cumsum(weights, axis=-1)
        mass = jnp.take_along_axis(cumulative, kept[:, None] - 1, axis=-1)[:, 0]
        goal = jnp.ceil(controls.top_p * mass.astype(jnp.float32)).astype(jnp.int64)
        nucleus = jnp.sum(cumulative - weights < goal[:, None], axis=-1).astype(jnp.int32)
    kept = jnp.where(controls.top_p < 1, jnp.minimum(kept, jnp.maximum(nucleus, 1)), kept)
    last = jnp.take_along_axis(values, kept[:, None] - 1, axis=-1)[:, 0]
    return jnp.where(kept < vocab, last, -jnp.inf)


def _weights(scaled: Array) -> Array:
    """``2**24 * exp(logit)``, rounded, int64."""
    return jnp.round(jnp.exp(scaled) * (1 << _WEIGHT_BITS)).astype(jnp.int64)

"""Sampling inside of a step, as ``llmk.reference.sampling`` defines it: a row's token depends on its logits, its seed
and its position only, so it is the same in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

_WEIGHT_BITS = 24
"""The most likely token has the weight ``2**24``; rounded weights are summed exactly."""
_HALF_WEIGHT = _WEIGHT_BITS // 2
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
    drawn: Array = lax.cond(
        jnp.all(is_greedy), lambda: greedy, lambda: jnp.where(is_greedy, greedy, _draw(logits, controls))
    )
    return drawn


def _draw(logits: Array, controls: Controls) -> Array:
    """A token for each row by inverting its cumulative distribution at its random number, in integers. Nothing is
    sorted or summed up token by token: bounds are found by bisection, with a sum over the row for each bit, which takes
    a device with wide vectors less time."""
    rows, vocab = logits.shape
    divisor = jnp.where(controls.temperature == 0, 1.0, controls.temperature)[:, None]
    scaled = (logits - logits.max(axis=-1, keepdims=True)) / divisor
    weights = _weights(scaled)
    cuts = (controls.top_k > 0) | (controls.top_p < 1)
    off = jnp.full(rows, -jnp.inf, jnp.float32)
    floor = lax.cond(jnp.any(cuts), lambda: _floor(scaled, weights, controls), lambda: off)
    floor = jnp.maximum(floor, jnp.log(controls.min_p))[:, None]
    weights = jnp.where(scaled < floor, 0, weights)
    total = _mass(weights)
    with jax.enable_x64(True):
        high, low = (half.astype(jnp.int64) for half in (controls.high, controls.low))
        target = (high * total + ((low * total) >> _HALF)) >> _HALF
    ids = jnp.arange(vocab, dtype=jnp.int32)
    # Logits with NaN have no distribution; the id must still be valid, because the next step embeds it.
    return _least(rows, vocab - 1, lambda id: _mass(jnp.where(ids <= id[:, None], weights, 0)) > target)


def _floor(scaled: Array, weights: Array, controls: Controls) -> Array:
    """The least logit that top-k and top-p keep, float32 ``[rows]``; the greatest of ``scaled`` is 0 in each row."""
    rows, vocab = scaled.shape
    keys = lax.bitcast_convert_type(jnp.abs(scaled), jnp.int32)  # in the order of the logits, the most likely 0
    most = jnp.where(controls.top_k > 0, jnp.minimum(controls.top_k, vocab), vocab)
    by_count = _least(rows, _GREATEST_KEY, lambda key: (keys <= key[:, None]).sum(axis=-1) >= most)
    before = keys < by_count[:, None]
    rest = most - before.sum(axis=-1)
    mass, own = _mass(jnp.where(before, weights, 0)), _weights(-_number(by_count))
    with jax.enable_x64(True):
        mass = mass + rest.astype(jnp.int64) * own.astype(jnp.int64)
        goal = jnp.ceil(controls.top_p * mass.astype(jnp.float32)).astype(jnp.int64)
    by_mass = _least(rows, _GREATEST_KEY, lambda key: _mass(jnp.where(keys <= key[:, None], weights, 0)) >= goal)
    return -_number(jnp.where(controls.top_p < 1, jnp.minimum(by_count, by_mass), by_count))


_GREATEST_KEY = 0x7F800000
"""The bits of infinity."""


def _number(key: Array) -> Array:
    return lax.bitcast_convert_type(key, jnp.float32)


def _least(rows: int, most: int, holds: Callable[[Array], Array]) -> Array:
    """For each row, the least integer up to ``most`` for which ``holds`` is true, as it is for all greater ones; if for
    none, ``most``. int32 ``[rows]``."""

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        found = holds(middle)
        return jnp.where(found, low, jnp.minimum(middle + 1, high)), jnp.where(found, middle, high)

    start = jnp.zeros(rows, jnp.int32), jnp.full(rows, most, jnp.int32)
    bounds: tuple[Array, Array] = lax.fori_loop(0, most.bit_length(), halve, start)
    return bounds[1]


def _mass(weights: Array) -> Array:
    """The sum of each row's weights, int64 ``[rows]``, of two sums that fit 32 bits for up to ``2**18`` tokens."""
    high = (weights >> _HALF_WEIGHT).sum(axis=-1)
    low = (weights & ((1 << _HALF_WEIGHT) - 1)).sum(axis=-1)
    with jax.enable_x64(True):
        return (high.astype(jnp.int64) << _HALF_WEIGHT) + low.astype(jnp.int64)


def _weights(scaled: Array) -> Array:
    """``2**24 * exp(logit)``, rounded, int32."""
    return jnp.round(jnp.exp(scaled) * (1 << _WEIGHT_BITS)).astype(jnp.int32)

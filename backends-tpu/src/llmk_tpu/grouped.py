"""Grouped GEMMs: rows that are sorted by expert, each group with its expert's matrix.

Each function takes rows ``[rows, inputs]``, the matrices as a :class:`Stack`, and how many rows each expert has, int32
``[experts]``, which add up to all; it returns ``[rows, outputs]`` in the dtype of the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

_LARGEST = 512
_TILE_ROWS = 128
_SUBLANES = 16
"""Rows of a register in 16 bits; of two in 32."""


class Stack(NamedTuple):
    """The matrices of the experts of layers that are alike, ``[layers, experts, inputs, outputs]``, and the number of
    the layer to compute."""

    values: Array
    layer: Array | int


def by_lax(rows: Array, weights: Stack, rows_of: Array) -> Array:
    """By ``lax.ragged_dot``, as XLA computes it."""
    found: Array = lax.ragged_dot(rows, weights.values[weights.layer], rows_of)
    return found


def by_megablox(rows: Array, weights: Stack, rows_of: Array, *, interpret: bool = False) -> Array:
    """By JAX's kernel in Pallas (megablox), which visits only the matrices of experts that have rows. It gets those of
    all layers, with no rows for the others: a kernel's operands are whole arrays, so that a layer's would be copied."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm  # what it imports is for TPUs

    _, experts, inputs, outputs = weights.values.shape
    count, every = rows.shape[0], weights.values.reshape(-1, inputs, outputs)
    sizes = lax.dynamic_update_slice(
        jnp.zeros(every.shape[0], jnp.int32), rows_of.astype(jnp.int32), (weights.layer * experts,)
    )
    tile = min(_TILE_ROWS, -(-count // _SUBLANES) * _SUBLANES)
    padded = jnp.pad(rows, ((0, -count % tile), (0, 0)))
    tiling = tile, min(inputs, _LARGEST), min(outputs, _LARGEST)
    found: Array = gmm(padded, every, sizes, rows.dtype, tiling, interpret=interpret)
    return found[:count]


def by_megablox_interpreted(rows: Array, weights: Stack, rows_of: Array) -> Array:
    """As :func:`by_megablox`, on any device."""
    return by_megablox(rows, weights, rows_of, interpret=True)

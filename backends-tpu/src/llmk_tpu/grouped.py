"""Grouped GEMMs: rows that are sorted by expert, each group with its expert's matrix.

Each function takes rows ``[rows, inputs]``, matrices ``[experts, inputs, outputs]`` and how many rows each expert has,
int32 ``[experts]``, which add up to all; it returns ``[rows, outputs]`` in the dtype of the rows.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

_LARGEST = 512
_TILE_ROWS = 128
_SUBLANES = 16
"""Rows of a register in 16 bits; of two in 32."""


def by_lax(rows: Array, weights: Array, rows_of: Array) -> Array:
    """By ``lax.ragged_dot``, as XLA computes it."""
    found: Array = lax.ragged_dot(rows, weights, rows_of)
    return found


def by_megablox(rows: Array, weights: Array, rows_of: Array, *, interpret: bool = False) -> Array:
    """By JAX's kernel in Pallas (megablox), which visits only the matrices of experts that have rows."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm  # what it imports is for TPUs

    count, inputs, outputs = rows.shape[0], rows.shape[1], weights.shape[2]
    tile = min(_TILE_ROWS, -(-count // _SUBLANES) * _SUBLANES)
    padded = jnp.pad(rows, ((0, -count % tile), (0, 0)))
    tiling = tile, min(inputs, _LARGEST), min(outputs, _LARGEST)
    found: Array = gmm(padded, weights, rows_of.astype(jnp.int32), rows.dtype, tiling, interpret=interpret)
    return found[:count]


def by_megablox_interpreted(rows: Array, weights: Array, rows_of: Array) -> Array:
    """As :func:`by_megablox`, on any device."""
    return by_megablox(rows, weights, rows_of, interpret=True)

"""Attention over the paged cache in plain JAX: writes the step's keys and values, then attends tile by tile.

A tile is a few tokens of one request. All tiles go through the pages that they need in chunks, with a running maximum
and sum (Milakov, Gimelshein: Online normalizer calculation for softmax, 2018), so memory does not grow with the length
of requests, and time grows with the longest of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from llmk.tree import Attend
from llmk_tpu.blocks import softcap

_CHUNK = 256
"""About how many tokens of the cache a tile attends to at once."""


class Tiles(NamedTuple):
    """How the tokens of a step are cut, int32: the ``row`` of each tile's request, its first token (``start``), and how
    many it has (``size``), each ``[tiles]``; and for each token ``[tokens]`` its place among all tiles' tokens
    (``place``)."""

    row: Array
    start: Array
    size: Array
    place: Array


class Pages(NamedTuple):
    """The cache of a model and the step's view of it.

    ``cache`` is ``[buffers, blocks, block_size, 2 * kv_heads, head_dim]``, keys before values. ``tables`` are int32
    ``[groups, requests, max_blocks]``; ``rows`` int32 ``[tokens]``, each token's request, out of range for padding.
    """

    cache: Array
    tables: Array
    rows: Array


def write(pages: Pages, place: Array, positions: Array, k: Array, v: Array) -> Array:
    """The cache with the step's keys and values. ``place``: int32 ``[2]``, buffer and group of the layer."""
    cache, tables, rows = pages
    num_blocks, block_size = cache.shape[1:3]
    table = tables[place[1]]
    block = table[jnp.minimum(rows, table.shape[0] - 1), positions // block_size]
    block = jnp.where(rows < table.shape[0], block, num_blocks)  # out of range: dropped
    new = jnp.concatenate((k, v), axis=1).astype(cache.dtype)
    return cache.at[place[0], block, positions % block_size].set(new, mode="drop")


def attend(spec: Attend, q: Array, pages: Pages, place: Array, positions: Array, tiles: Tiles, tile: int) -> Array:
    """Attention of queries ``[tokens, heads, head_dim]`` to the cache, in which their own keys are written already."""
    cache, block_size = pages.cache, pages.cache.shape[2]
    table = pages.tables[place[1]][tiles.row]
    width = max(1, min(_CHUNK // block_size, table.shape[1]))
    chunk = width * block_size
    at = jnp.minimum(tiles.start[:, None] + jnp.arange(tile), q.shape[0] - 1)
    query = q[at].reshape(*at.shape, spec.kv_heads, -1, spec.head_dim)
    position = positions[at]
    last = jnp.take_along_axis(position, jnp.maximum(tiles.size[:, None] - 1, 0), axis=1)[:, 0]
    length = jnp.where(tiles.size > 0, last + 1, 0)
    oldest = jnp.zeros_like(length) if spec.window is None else jnp.maximum(position[:, 0] - spec.window + 1, 0)
    first = oldest // chunk
    rounds = jnp.max(-(-length // chunk) - first)
    scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale

    def one(round: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        start = (first + round)[:, None] * width
        column = jnp.minimum(start + jnp.arange(width), table.shape[1] - 1)
        found = cache[place[0], jnp.take_along_axis(table, column, axis=1)]
        found = found.reshape(at.shape[0], chunk, 2, spec.kv_heads, spec.head_dim)
        key = start * block_size + jnp.arange(chunk)
        is_key = (key >= oldest[:, None]) & (key < length[:, None])
        back = position[:, :, None] - key[:, None]
        seen = is_key[:, None] & (back >= 0) & (back < (spec.window or _EVER))
        # What other requests left in the cache may be NaN, which no weight of 0 hides.
        found = jnp.where(is_key[:, :, None, None, None], found, 0)
        return _online(spec, query, found[:, :, 0], found[:, :, 1], seen, scale, state)

    shape = (at.shape[0], spec.kv_heads, spec.heads // spec.kv_heads, tile)
    start = (
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, spec.head_dim), jnp.float32),
    )
    _, total, out = lax.fori_loop(0, rounds, one, start)
    out = (out / jnp.where(total == 0, 1, total)[..., None]).astype(q.dtype)
    by_place: Array = out.transpose(0, 3, 1, 2, 4).reshape(-1, *q.shape[1:])
    return by_place[tiles.place]


_EVER = 1 << 30


def _online(
    spec: Attend, query: Array, k: Array, v: Array, seen: Array, scale: float, state: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Adds a chunk of keys and values ``[tiles, chunk, kv_heads, head_dim]`` to maximum, sum and output so far."""
    most, total, out = state
    scores = jnp.einsum("nqhgd,nkhd->nhgqk", query, k, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(seen[:, None, None], softcap(scores, spec.softcap), -jnp.inf)
    higher = jnp.maximum(most, scores.max(axis=-1))
    base = jnp.where(jnp.isneginf(higher), 0, higher)
    weights = jnp.exp(scores - base[..., None])
    shrunk = jnp.exp(most - base)
    added = jnp.einsum("nhgqk,nkhd->nhgqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return higher, total * shrunk + weights.sum(axis=-1), out * shrunk[..., None] + added

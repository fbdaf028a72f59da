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

    ``cache`` is ``[buffers, blocks, 2 * kv_heads, block_size, head_dim]``, keys before values. ``tables`` are int32
    ``[groups, requests, max_blocks]``; ``rows`` int32 ``[tokens]``, each token's request, out of range for padding.
    """

    cache: Array
    tables: Array
    rows: Array


def write(pages: Pages, place: Array, positions: Array, k: Array, v: Array) -> Array:
    """The cache with the step's keys and values. ``place``: int32 ``[2]``, buffer and group of the layer.

    Each head's vector is written by itself, into the cache seen as rows: so the compiler keeps the layout that it has.
    Written token by token, it would get another one, and be copied as a whole in each layer, twice.
    """
    cache, tables, rows = pages
    _, num_blocks, heads, block_size, size = cache.shape
    table = tables[place[1]]
    block = table[jnp.minimum(rows, table.shape[0] - 1), positions // block_size]
    first = (place[0] * num_blocks + block) * heads
    at = (first[:, None] + jnp.arange(heads)) * block_size + (positions % block_size)[:, None]
    flat = cache.reshape(-1, size)
    nowhere = flat.shape[0] + jnp.arange(at.size).reshape(at.shape)  # of no other row, and dropped
    at = jnp.where((rows < table.shape[0])[:, None], at, nowhere)
    new = jnp.concatenate((k, v), axis=1).astype(cache.dtype).reshape(-1, size)
    return flat.at[at.ravel()].set(new, mode="drop", unique_indices=True).reshape(cache.shape)


def by_tile(spec: Attend, q: Array, tiles: Tiles, tile: int) -> Array:
    """Queries by tile, ``[tiles, kv_heads, group * tile, head_dim]``: for each head of the group, the tile's tokens."""
    at = jnp.minimum(tiles.start[:, None] + jnp.arange(tile), q.shape[0] - 1)
    query = q[at].reshape(*at.shape, spec.kv_heads, -1, spec.head_dim).transpose(0, 2, 3, 1, 4)
    return query.reshape(query.shape[0], spec.kv_heads, -1, spec.head_dim)


def by_token(out: Array, tiles: Tiles, tile: int) -> Array:
    """What :func:`by_tile` made, as ``[tokens, heads, head_dim]`` again."""
    count, kv_heads, _, size = out.shape
    each = out.reshape(count, kv_heads, -1, tile, size).transpose(0, 3, 1, 2, 4).reshape(count * tile, -1, size)
    return each[tiles.place]


def attend(spec: Attend, q: Array, pages: Pages, place: Array, positions: Array, tiles: Tiles, tile: int) -> Array:
    """Attention of queries ``[tokens, heads, head_dim]`` to the cache, in which their own keys are written already."""
    cache, block_size = pages.cache, pages.cache.shape[3]
    table = pages.tables[place[1]][tiles.row]
    width = max(1, min(_CHUNK // block_size, table.shape[1]))
    chunk = width * block_size
    at = jnp.minimum(tiles.start[:, None] + jnp.arange(tile), q.shape[0] - 1)
    query = by_tile(spec, q, tiles, tile)
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
        found = found.swapaxes(1, 2).reshape(at.shape[0], 2, spec.kv_heads, chunk, spec.head_dim)
        key = start * block_size + jnp.arange(chunk)
        is_key = (key >= oldest[:, None]) & (key < length[:, None])
        back = position[:, :, None] - key[:, None]
        seen = is_key[:, None] & (back >= 0) & (back < (spec.window or _EVER))
        # What other requests left in the cache may be NaN, which no weight of 0 hides.
        found = jnp.where(is_key[:, None, None, :, None], found, 0)
        seen = jnp.tile(seen, (1, spec.heads // spec.kv_heads, 1))
        return _online(spec, query, found[:, 0], found[:, 1], seen, scale, state)

    shape = query.shape[:3]
    start = (
        jnp.full(shape, -jnp.inf, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, spec.head_dim), jnp.float32),
    )
    _, total, out = lax.fori_loop(0, rounds, one, start)
    return by_token((out / jnp.where(total == 0, 1, total)[..., None]).astype(q.dtype), tiles, tile)


_EVER = 1 << 30


def _online(
    spec: Attend, query: Array, k: Array, v: Array, seen: Array, scale: float, state: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Adds a chunk of keys and values ``[tiles, kv_heads, chunk, head_dim]`` to maximum, sum and output so far."""
    most, total, out = state
    scores = jnp.einsum("nhqd,nhkd->nhqk", query, k, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(seen[:, None], softcap(scores, spec.softcap), -jnp.inf)
    higher = jnp.maximum(most, scores.max(axis=-1))
    base = jnp.where(jnp.isneginf(higher), 0, higher)
    weights = jnp.exp(scores - base[..., None])
    shrunk = jnp.exp(most - base)
    added = jnp.einsum("nhqk,nhkd->nhqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return higher, total * shrunk + weights.sum(axis=-1), out * shrunk[..., None] + added

"""Attention over the paged cache as a kernel in Pallas: each tile of queries of :mod:`llmk_tpu.paged` reads the pages
that its own request needs, while the pages of the next chunk are copied.

It computes what :func:`llmk_tpu.paged.attend` does, which it is tested against. JAX has a kernel for this too
(``jax.experimental.pallas.ops.tpu.ragged_paged_attention``); that one can't be interpreted, so that no one without a
TPU could test it, and keeps a head's keys in rows that are not adjacent.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from llmk.tree import Attend
from llmk_tpu.kernels import chunk_of
from llmk_tpu.paged import Pages, Tiles, by_tile, by_token

_LANES = 128


def attend(
    spec: Attend,
    q: Array,
    pages: Pages,
    place: Array,
    positions: Array,
    tiles: Tiles,
    tile: int,
    *,
    interpret: Any = False,
) -> Array:
    """As :func:`llmk_tpu.paged.attend`.

    Args:
        interpret: run it by Pallas's interpreter, or with the options of its interpreter for TPUs.
    """
    query = by_tile(spec, q, tiles, tile)
    first = positions[jnp.minimum(tiles.start, q.shape[0] - 1)]
    out = _call(spec, query, pages, place, (tiles.row, first, tiles.size), tile, interpret)
    return by_token(out, tiles, tile)


def attend_interpreted(
    spec: Attend, q: Array, pages: Pages, place: Array, positions: Array, tiles: Tiles, tile: int
) -> Array:
    """As :func:`attend`, on any device."""
    return attend(spec, q, pages, place, positions, tiles, tile, interpret=True)


def _call(
    spec: Attend, query: Array, pages: Pages, place: Array, scalars: tuple[Array, ...], tile: int, interpret: Any
) -> Array:
    """Attention of queries by tile (:func:`llmk_tpu.paged.by_tile`), in their shape."""
    count, heads, rows, size = query.shape
    block, table = pages.cache.shape[3], pages.tables[place[1]][:, None]
    width = max(1, min(chunk_of(heads, size, pages.cache.dtype.itemsize) // block, table.shape[2]))

    def of_next(i: Array, place: Array, row: Array, *_: Array) -> tuple[Array, int, int]:
        return row[jnp.minimum(i + 1, count - 1)], 0, 0

    block_of = pl.BlockSpec((1, heads, rows, size), lambda i, *_: (i, 0, 0, 0))
    kept = partial(pltpu.VMEM, dtype=jnp.float32)
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=4,
        grid=(count,),
        in_specs=[
            pl.BlockSpec((1, 1, table.shape[2]), lambda i, place, row, *_: (row[i], 0, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec((1, 1, table.shape[2]), of_next, memory_space=pltpu.SMEM),
            block_of,
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        out_specs=block_of,
        scratch_shapes=[
            pltpu.VMEM((2, 2 * heads, width * block, size), pages.cache.dtype),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SMEM((1,), jnp.int32),
            *(kept(shape) for shape in ((heads, rows, _LANES), (heads, rows, _LANES), (heads, rows, size))),
        ],
    )
    found: Array = pl.pallas_call(
        partial(_kernel, spec, tile, width),
        grid_spec=grid,
        out_shape=jax.typeof(query),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=interpret,
        name="ragged_paged_attention",
    )(place[:1], *scalars, table, table, query, pages.cache)
    return found


def _kernel(spec: Attend, tile: int, width: int, *refs: Any) -> None:
    """One tile. Chunks are copied into two buffers by turns; ``rounds`` counts them over all tiles, so that the last
    chunk of a tile is computed while the first of the next is on its way."""
    place, _, first, size, table, next_table, query, cache, out, *scratch = refs
    buffers, semaphores, rounds, most, total, sums = scratch
    i, count, block = pl.program_id(0), pl.num_programs(0), cache.shape[3]
    chunk = width * block

    def bounds(tile_: Any) -> tuple[Any, Any, Any]:
        """The first chunk, that after the last, and how many tokens the tile can see."""
        length = jnp.where(size[tile_] > 0, first[tile_] + size[tile_], 0)
        oldest = 0 if spec.window is None else jnp.maximum(first[tile_] - spec.window + 1, 0)
        return oldest // chunk, (length + chunk - 1) // chunk, length

    def copies(tile_: Any, pages: Any, number: Any, slot: Any) -> list[Any]:
        last = jnp.maximum((bounds(tile_)[2] + block - 1) // block - 1, 0)
        at = [pages[0, 0, jnp.minimum(number * width + page, last)] for page in range(width)]
        where = [buffers.at[slot, :, pl.ds(page * block, block)] for page in range(width)]
        here = semaphores.at[slot]
        return [pltpu.make_async_copy(cache.at[place[0], a], w, here) for a, w in zip(at, where, strict=True)]

    def start(tile_: Any, pages: Any, number: Any, slot: Any) -> None:
        for copy in copies(tile_, pages, number, slot):
            copy.start()

    started, end, length = bounds(i)
    following, after, _ = bounds(jnp.minimum(i + 1, count - 1))
    is_followed = (i + 1 < count) & (following < after)

    def start_first() -> None:
        rounds[0] = 0
        pl.when(started < end)(lambda: start(i, table, started, 0))

    pl.when(i == 0)(start_first)
    most[...] = jnp.full_like(most, -jnp.inf)
    total[...] = jnp.zeros_like(total)
    sums[...] = jnp.zeros_like(sums)

    def one(number: Any, _: Any) -> int:
        slot = rounds[0] % 2
        pl.when(number + 1 < end)(lambda: start(i, table, number + 1, 1 - slot))
        pl.when((number + 1 == end) & is_followed)(lambda: start(i + 1, next_table, following, 1 - slot))
        for copy in copies(i, table, number, slot):
            copy.wait()
        _add_chunk(spec, tile, (first[i], number * chunk, length), query, buffers.at[slot], (most, total, sums))
        rounds[0] = rounds[0] + 1
        return 0

    lax.fori_loop(started, end, one, 0)
    divisor = total[...][:, :, :1]
    out[0] = (sums[...] / jnp.where(divisor == 0, 1.0, divisor)).astype(out.dtype)


def _add_chunk(
    spec: Attend, tile: int, at: tuple[Any, Any, Any], query: Any, chunk: Any, state: tuple[Any, Any, Any]
) -> None:
    """Adds a chunk ``[2 * kv_heads, keys, head_dim]`` to maximum, sum and output so far. ``at``: the positions of the
    tile's first token and of the chunk's, and the length of the request."""
    (first, start, length), (most, total, sums) = at, state
    heads, rows, keys = query.shape[1], query.shape[2], chunk.shape[1]
    scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
    key = start + lax.broadcasted_iota(jnp.int32, (rows, keys), 1)
    back = first + (lax.broadcasted_iota(jnp.int32, (rows, keys), 0) & (tile - 1)) - key  # a power of two
    seen = back >= 0 if spec.window is None else (back >= 0) & (back < spec.window)
    # What other requests left in the cache may be NaN, which no weight of 0 hides.
    place = start + lax.broadcasted_iota(jnp.int32, (keys, 1), 0)
    is_key = place < length if spec.window is None else (place < length) & (place > first - spec.window)

    def of_request(x: Any) -> Any:
        return jnp.where(is_key, x.astype(jnp.float32), 0).astype(x.dtype)

    for head in range(heads):
        k, v = of_request(chunk[head]), of_request(chunk[heads + head])
        scores = lax.dot_general(query[0, head], k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        scores = scores * scale
        if spec.softcap is not None:
            scores = spec.softcap * jnp.tanh(scores / spec.softcap)
        scores = jnp.where(seen, scores, -jnp.inf)
        higher = jnp.maximum(most[head], scores.max(axis=-1, keepdims=True))
        base = jnp.where(higher == -jnp.inf, 0.0, higher)
        weights, shrunk = jnp.exp(scores - base[:, :1]), jnp.exp(most[head] - base)
        most[head] = higher
        total[head] = total[head] * shrunk + weights.sum(axis=-1, keepdims=True)
        added = lax.dot_general(
            weights.astype(v.dtype), v, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        sums[head] = sums[head] * shrunk[:, :1] + added

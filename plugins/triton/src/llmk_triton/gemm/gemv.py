"""GEMV for very small M, where the time is that of reading the weight.

A program keeps its rows of the weight in registers. It loads them before it waits for the previous kernel, so that
memory is busy while that kernel ends. Then it computes norm, dot products and activation, one row of ``x`` after the
other. Intermediates are rounded where :mod:`llmk.reference` rounds them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.activations import activate
from llmk_triton.common.tuples import append, nothing


@triton.jit
def _rows(at, row, column, SIZE: tl.constexpr, VECTOR: tl.constexpr, KEEP: tl.constexpr):
    """Loads rows of ``SIZE`` elements at ``at``, in tiles of ``[rows, threads, VECTOR]`` whose last dimension belongs
    to one thread; zeros beyond their ends. Without ``KEEP``, they are the first to be evicted from the cache."""
    BLOCK: tl.constexpr = column.shape[0]
    tiles = nothing()
    for first in tl.static_range(0, SIZE, BLOCK):
        place = at + row[:, None] * SIZE + (first + column)[None, :]
        if first + BLOCK <= SIZE:
            tile = tl.load(place, eviction_policy="" if KEEP else "evict_first")
        else:
            inside = (first + column < SIZE)[None, :]
            tile = tl.load(place, inside, other=0.0, eviction_policy="" if KEEP else "evict_first")
        tiles = append(tiles, tl.reshape(tile, [row.shape[0], BLOCK // VECTOR, VECTOR]))
    return tiles


@triton.jit
def _store(tiles, at, row, column, writes, SIZE: tl.constexpr):
    """Stores ``tiles`` to the row at ``at``, where ``writes`` is true."""
    BLOCK: tl.constexpr = column.shape[0]
    for i in tl.static_range(len(tiles)):
        place = row[:, None] * SIZE + (column + i * BLOCK)[None, :]
        inside = writes[:, None] & (column + i * BLOCK < SIZE)[None, :]
        tl.store(at + place, tl.reshape(tiles[i], [row.shape[0], BLOCK]).to(at.dtype.element_ty), inside)


@triton.jit
def _add(tiles, others, like, FACTOR: tl.constexpr):
    """``FACTOR * tiles`` plus ``others``, both rounded to ``like``'s dtype."""
    sums = nothing()
    for i in tl.static_range(len(tiles)):
        value = tiles[i].to(tl.float32)
        if FACTOR != 1.0:
            value = (value * FACTOR).to(like.dtype.element_ty).to(tl.float32)
        sums = append(sums, (value + others[i].to(tl.float32)).to(like.dtype.element_ty))
    return sums


@triton.jit
def _norm(tiles, scales, like, EPS: tl.constexpr, SIZE: tl.constexpr):
    """The norm of the rows in ``tiles`` with the weight in ``scales``; float32, rounded to ``like``'s dtype."""
    factor = tl.rsqrt(_dot(tiles, tiles) / SIZE + EPS)[:, None, None]
    normed = nothing()
    for i in tl.static_range(len(tiles)):
        value = (tiles[i].to(tl.float32) * factor).to(like.dtype.element_ty).to(tl.float32)
        value = (value * scales[i].to(tl.float32)).to(like.dtype.element_ty).to(tl.float32)
        normed = append(normed, value)
    return normed


@triton.jit
def _activated(tiles, like, KIND: tl.constexpr):
    """An activation of the rows in ``tiles``, rounded to ``like``'s dtype; without a ``KIND``, the rows."""
    if KIND == "":
        return tiles
    else:
        found = nothing()
        for i in tl.static_range(len(tiles)):
            found = append(found, activate(tiles[i].to(tl.float32), KIND).to(like.dtype.element_ty))
        return found


@triton.jit
def _dot(left, right):
    """Dot products of the rows in ``left`` and ``right``: float32 ``[rows]``."""
    acc = tl.sum(left[0].to(tl.float32) * right[0].to(tl.float32), axis=2)
    for i in tl.static_range(1, len(left)):
        acc += tl.sum(left[i].to(tl.float32) * right[i].to(tl.float32), axis=2)
    return tl.sum(acc, axis=1)


@triton.jit
def _scales(scale, row, thread, SIZE: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr):
    """Loads the scales of a weight's rows, float32: ``[rows]``, or, for scales per block of ``SCALED`` rows and
    columns, tiles of ``[rows, threads]`` that match those of :func:`_rows`. ``thread`` is each thread's first
    column."""
    if SCALED == 1:
        return tl.load(scale + row)
    else:
        tiles = nothing()
        for first in tl.static_range(0, SIZE, BLOCK):
            column = tl.minimum(first + thread, SIZE - 1) // SCALED
            tiles = append(tiles, tl.load(scale + row[:, None] // SCALED * tl.cdiv(SIZE, SCALED) + column[None, :]))
        return tiles


@triton.jit
def _scaled_dot(left, right, scales, SCALED: tl.constexpr):
    """:func:`_dot` with the quantized weight ``left`` and its ``scales`` from :func:`_scales`."""
    if SCALED == 0:
        return _dot(left, right)
    elif SCALED == 1:
        return _dot(left, right) * scales
    else:
        acc = tl.sum(left[0].to(tl.float32) * right[0].to(tl.float32), axis=2) * scales[0]
        for i in tl.static_range(1, len(left)):
            acc += tl.sum(left[i].to(tl.float32) * right[i].to(tl.float32), axis=2) * scales[i]
        return tl.sum(acc, axis=1)


@triton.jit
def _row_outputs(tiles, held, scales, added, like, SCALED: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Dot products of the weight rows ``held`` with the row ``tiles``, plus the bias ``added``: float32 ``[rows]``,
    rounded to ``like``'s dtype."""
    found = _scaled_dot(held, tiles, scales, SCALED)
    if HAS_BIAS:
        found += added
    return found.to(like.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def gemv_kernel(
    x, residual, norm_weight, weight, scale, bias, out, total, kept, num_rows,
    EPS: tl.constexpr, SIZE: tl.constexpr, OUT: tl.constexpr, MOST_ROWS: tl.constexpr, ROWS: tl.constexpr,
    THREADS: tl.constexpr, VECTOR: tl.constexpr, APART: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, FACTOR: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr,
    KEEPS: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = f(norm(FACTOR * x + residual) @ weight.T + bias)``; each program computes ``ROWS`` columns of ``out``.

    ``x``, ``residual`` and ``total`` (their sum) are ``[num_rows, SIZE]`` with at most ``MOST_ROWS`` rows, ``weight``
    is ``[OUT, SIZE]``, ``out`` ``[num_rows, OUT]``, all contiguous. With ``KEEPS``, the norm's result is stored in
    ``kept``. With an ``ACTIVATION``, that of ``x`` takes the norm's place. With ``GATED``, ``weight`` and ``bias`` have
    ``2 * OUT`` rows, and ``f`` is SwiGLU of the first and the second half. ``SCALED`` is 0 for a plain weight, 1 for a
    scale per row, else the block size of the scales.

    ``THREADS`` threads share a row, and each loads ``VECTOR`` elements at once. With ``APART``, each warp has rows of
    its own and reads all of ``x`` for them.
    """
    pdl.release(PDL)
    first = tl.program_id(0) * ROWS
    row = tl.minimum(tl.arange(0, ROWS), OUT - 1 - first)
    column = tl.arange(0, THREADS * VECTOR)
    at = weight + first.to(tl.int64) * SIZE
    held = _rows(at, row, column, SIZE, VECTOR, False)
    if GATED:
        held_up = _rows(at + OUT * SIZE, row, column, SIZE, VECTOR, False)
    scales, scales_up = nothing(), nothing()
    if SCALED > 0:
        thread = tl.arange(0, THREADS) * VECTOR
        scales = _scales(scale, first + row, thread, SIZE, THREADS * VECTOR, SCALED)
        if GATED:
            scales_up = _scales(scale, OUT + first + row, thread, SIZE, THREADS * VECTOR, SCALED)
    # With ``APART``, the tiles of a row of ``x`` need the same layout as the weight's, with a copy for each row.
    alike = tl.arange(0, ROWS if APART else 1)
    one = alike * 0
    if HAS_NORM:
        norms = _rows(norm_weight, one, column, SIZE, VECTOR, True)
    added = tl.load(bias + first + row).to(tl.float32) if HAS_BIAS else 0.0
    added_up = tl.load(bias + OUT + first + row).to(tl.float32) if HAS_BIAS and GATED else 0.0
    pdl.wait(PDL)
    # All rows are loaded before the first is used, so that their latencies overlap.
    every, others = nothing(), nothing()
    for m in tl.static_range(MOST_ROWS):
        place = tl.minimum(m, num_rows - 1) * SIZE
        every = every + _rows(x + place, one, column, SIZE, VECTOR, True)
        if HAS_RESIDUAL:
            others = others + _rows(residual + place, one, column, SIZE, VECTOR, True)
    for m in tl.static_range(MOST_ROWS):
        tiles = every[m * len(held) : (m + 1) * len(held)]
        writes = (alike == 0) & (first == 0) & (m < num_rows)
        if HAS_RESIDUAL:
            tiles = _add(tiles, others[m * len(held) : (m + 1) * len(held)], total, FACTOR)
            _store(tiles, total + m * SIZE, one, column, writes, SIZE)
        if HAS_NORM:
            tiles = _norm(tiles, norms, out, EPS, SIZE)
        tiles = _activated(tiles, out, ACTIVATION)
        if KEEPS:
            _store(tiles, kept + m * SIZE, one, column, writes, SIZE)
        found = _row_outputs(tiles, held, scales, added, out, SCALED, HAS_BIAS)
        if GATED:
            up = _row_outputs(tiles, held_up, scales_up, added_up, out, SCALED, HAS_BIAS)
            found = activate(found, "silu").to(out.dtype.element_ty).to(tl.float32) * up
        inside = (tl.arange(0, ROWS) + first < OUT) & (m < num_rows)
        tl.store(out + m * OUT + first + tl.arange(0, ROWS), found.to(out.dtype.element_ty), inside)

"""Products with so few rows of activations that multiplying them is no work: all there is to it is reading the weight.

A program keeps its rows of the weight in registers, whole. They are asked for before the kernel waits for the one
before it, so that memory is busy while that one ends. Then come norm, product and activation, of one row of ``x`` after
the other. Roundings are where :mod:`llmk.reference` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.activations import activate
from llmk_triton.common.tuples import append, nothing


@triton.jit
def _rows(at, row, column, SIZE: tl.constexpr, VECTOR: tl.constexpr, KEEP: tl.constexpr):
    """The rows of ``SIZE`` elements at ``at``, in tiles of ``[rows, threads, VECTOR]`` of which a thread has the last
    dimension; zeros beyond their ends. ``KEEP`` says whether the processor's own cache is to keep them."""
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
    """The row at ``at`` gets ``tiles`` where ``writes``."""
    BLOCK: tl.constexpr = column.shape[0]
    for i in tl.static_range(len(tiles)):
        place = row[:, None] * SIZE + (column + i * BLOCK)[None, :]
        inside = writes[:, None] & (column + i * BLOCK < SIZE)[None, :]
        tl.store(at + place, tl.reshape(tiles[i], [row.shape[0], BLOCK]).to(at.dtype.element_ty), inside)


@triton.jit
def _add(tiles, others, like):
    """``tiles`` plus ``others``, rounded to ``like``'s dtype."""
    sums = nothing()
    for i in tl.static_range(len(tiles)):
        sums = append(sums, (tiles[i].to(tl.float32) + others[i].to(tl.float32)).to(like.dtype.element_ty))
    return sums


@triton.jit
def _norm(tiles, scales, like, EPS: tl.constexpr, SIZE: tl.constexpr):
    """The norm of the rows that ``tiles`` make up, by the weight that ``scales`` make up; float32, rounded to
    ``like``'s dtype."""
    factor = tl.rsqrt(_dot(tiles, tiles) / SIZE + EPS)[:, None, None]
    normed = nothing()
    for i in tl.static_range(len(tiles)):
        value = (tiles[i].to(tl.float32) * factor).to(like.dtype.element_ty).to(tl.float32)
        value = (value * scales[i].to(tl.float32)).to(like.dtype.element_ty).to(tl.float32)
        normed = append(normed, value)
    return normed


@triton.jit
def _dot(left, right):
    """Dot products of the rows that ``left`` and ``right`` make up: float32 ``[rows]``."""
    acc = tl.sum(left[0].to(tl.float32) * right[0].to(tl.float32), axis=2)
    for i in tl.static_range(1, len(left)):
        acc += tl.sum(left[i].to(tl.float32) * right[i].to(tl.float32), axis=2)
    return tl.sum(acc, axis=1)


@triton.jit
def _scales(scale, row, thread, SIZE: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr):
    """What rows of a weight are multiplied with, float32: ``[rows]``, one for each, or, for blocks of ``SCALED`` rows
    and columns, tiles of ``[rows, threads]`` like those of :func:`_rows`. ``thread`` is each thread's first column."""
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
    """:func:`_dot` with the weight ``left``, which :func:`_scales` multiply."""
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
def _product(tiles, held, scales, added, like, SCALED: tl.constexpr, HAS_BIAS: tl.constexpr):
    """What the rows that ``held`` make up make of the one that ``tiles`` make up, plus ``added``: float32 ``[rows]``,
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
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr,
    KEEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = f(norm(x + residual) @ weight.T + bias)``; a program computes ``ROWS`` columns of ``out``.

    ``x``, ``residual`` and ``total`` (their sum) are ``[num_rows, SIZE]``, at most ``MOST_ROWS`` of them, ``weight`` is
    ``[OUT, SIZE]``, ``out`` ``[num_rows, OUT]``, all contiguous. With ``KEEPS``, ``kept`` gets what was normed. With
    ``GATED``, ``weight`` and ``bias`` have as many rows again, and ``f`` is SwiGLU of the first and the second half.
    ``SCALED`` is 0, or the rows of the weight that share a number of ``scale``: 1, or as many as columns do, in blocks.

    ``THREADS`` share a row, each loads ``VECTOR`` elements together. Where warps stand ``APART``, each has rows of its
    own and reads all of ``x`` for them.
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
    # Tiles of the one row that is multiplied lie as the weight's do, where that is a warp's own.
    alike = tl.arange(0, ROWS if APART else 1)
    one = alike * 0
    if HAS_NORM:
        norms = _rows(norm_weight, one, column, SIZE, VECTOR, True)
    added = tl.load(bias + first + row).to(tl.float32) if HAS_BIAS else 0.0
    added_up = tl.load(bias + OUT + first + row).to(tl.float32) if HAS_BIAS and GATED else 0.0
    pdl.wait(PDL)
    # All rows are asked for before any is multiplied, so that they are waited for together.
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
            tiles = _add(tiles, others[m * len(held) : (m + 1) * len(held)], total)
            _store(tiles, total + m * SIZE, one, column, writes, SIZE)
        if HAS_NORM:
            tiles = _norm(tiles, norms, out, EPS, SIZE)
        if KEEPS:
            _store(tiles, kept + m * SIZE, one, column, writes, SIZE)
        found = _product(tiles, held, scales, added, out, SCALED, HAS_BIAS)
        if GATED:
            up = _product(tiles, held_up, scales_up, added_up, out, SCALED, HAS_BIAS)
            found = activate(found, "silu").to(out.dtype.element_ty).to(tl.float32) * up
        inside = (tl.arange(0, ROWS) + first < OUT) & (m < num_rows)
        tl.store(out + m * OUT + first + tl.arange(0, ROWS), found.to(out.dtype.element_ty), inside)

"""Products with so few rows of activations that multiplying them is no work: all there is to it is reading the weight.

A program keeps its rows of the weight in registers, whole. They are asked for before the kernel waits for the one before
it, so that memory is busy while that one ends. Then come norm, product and activation, of one row of ``x`` after the
other. Roundings are where :mod:`llmk.reference` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton import pdl
from llmk_triton.activations import activate


@triton.jit
def _rows(at, row, column, SIZE: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr):
    """Tiles of ``[rows, BLOCK]``, side by side, of the rows of ``SIZE`` elements at ``at``; zeros beyond their ends.
    ``KEEP`` says whether the processor's own cache is to keep them."""
    tiles = ()
    for first in tl.static_range(0, SIZE, BLOCK):
        place = at + row[:, None] * SIZE + (first + column)[None, :]
        if first + BLOCK <= SIZE:
            tile = tl.load(place, eviction_policy="" if KEEP else "evict_first")
        else:
            inside = (first + column < SIZE)[None, :]
            tile = tl.load(place, inside, other=0.0, eviction_policy="" if KEEP else "evict_first")
        tiles = tiles + (tile,)  # noqa: RUF005 (Triton has no unpacking)
    return tiles


@triton.jit
def _along(x, VECTOR: tl.constexpr):
    """Sums of every ``VECTOR`` neighbours, which one thread has: ``[rows, size]`` to ``[rows, size / VECTOR]``."""
    return tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // VECTOR, VECTOR]), axis=2)


@triton.jit
def _sum_of_residual(tiles, residual, total, row, column, writes, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """``tiles`` of ``x`` plus those of ``residual``, rounded; ``total`` gets the sum where ``writes``."""
    added = _rows(residual, row, column, SIZE, BLOCK, True)
    sums = ()
    for i in tl.static_range(len(tiles)):
        value = (tiles[i].to(tl.float32) + added[i].to(tl.float32)).to(total.dtype.element_ty)
        inside = writes[:, None] & (i * BLOCK + column < SIZE)[None, :]
        tl.store(total + row[:, None] * SIZE + (i * BLOCK + column)[None, :], value, inside)
        sums = sums + (value,)  # noqa: RUF005
    return sums


@triton.jit
def _normed(tiles, scales, like, EPS: tl.constexpr, SIZE: tl.constexpr, VECTOR: tl.constexpr):
    """The norm of the rows that ``tiles`` make up, by the weight that ``scales`` make up; float32, rounded to ``like``'s
    dtype."""
    squares = tl.zeros([tiles[0].shape[0], tiles[0].shape[1] // VECTOR], tl.float32)
    for i in tl.static_range(len(tiles)):
        value = tiles[i].to(tl.float32)
        squares += _along(value * value, VECTOR)
    factor = tl.rsqrt(tl.sum(squares, axis=1) / SIZE + EPS)[:, None]
    normed = ()
    for i in tl.static_range(len(tiles)):
        value = (tiles[i].to(tl.float32) * factor).to(like.dtype.element_ty).to(tl.float32)
        value = (value * scales[i].to(tl.float32)).to(like.dtype.element_ty).to(tl.float32)
        normed = normed + (value,)  # noqa: RUF005
    return normed


@triton.jit
def _product(tiles, held, VECTOR: tl.constexpr):
    """What every row of ``held`` makes of the one row that ``tiles`` make up: float32 ``[rows]``."""
    acc = tl.zeros([held[0].shape[0], held[0].shape[1] // VECTOR], tl.float32)
    for i in tl.static_range(len(held)):
        acc += _along(held[i].to(tl.float32) * tiles[i].to(tl.float32), VECTOR)
    return tl.sum(acc, axis=1)


@triton.jit(do_not_specialize=["num_rows"])
def gemv_kernel(
    x, residual, norm_weight, weight, bias, out, total, num_rows,
    EPS: tl.constexpr, SIZE: tl.constexpr, OUT: tl.constexpr, MOST_ROWS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, VECTOR: tl.constexpr, APART: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = f(norm(x + residual) @ weight.T + bias)``; a program computes ``ROWS`` columns of ``out``.

    ``x``, ``residual`` and ``total`` (their sum) are ``[num_rows, SIZE]``, at most ``MOST_ROWS`` of them, ``weight`` is
    ``[OUT, SIZE]``, ``out`` ``[num_rows, OUT]``, all contiguous. With ``GATED``, ``weight`` and ``bias`` have as many
    rows again, and ``f`` is SwiGLU of the first and the second half.

    Rows of the weight go ``BLOCK`` elements at a time, ``VECTOR`` of which a thread loads together. Where warps stand
    ``APART``, each has rows of its own and reads all of ``x`` for them; else all share every row.
    """
    pdl.release(PDL)
    first = tl.program_id(0) * ROWS
    row = tl.minimum(tl.arange(0, ROWS), OUT - 1 - first)
    column = tl.arange(0, BLOCK)
    at = weight + first.to(tl.int64) * SIZE
    held = _rows(at, row, column, SIZE, BLOCK, False)
    if GATED:
        held_up = _rows(at + OUT * SIZE, row, column, SIZE, BLOCK, False)
    # Tiles of the one row that is multiplied lie as the weight's do, where that is a warp's own.
    alike = tl.arange(0, ROWS if APART else 1)
    one = alike * 0
    if HAS_NORM:
        scales = _rows(norm_weight, one, column, SIZE, BLOCK, True)
    if HAS_BIAS:
        added = tl.load(bias + first + row).to(tl.float32)
        if GATED:
            added_up = tl.load(bias + OUT + first + row).to(tl.float32)
    pdl.wait(PDL)
    for m in tl.static_range(MOST_ROWS):
        place = tl.minimum(m, num_rows - 1) * SIZE
        tiles = _rows(x + place, one, column, SIZE, BLOCK, True)
        if HAS_RESIDUAL:
            writes = (alike == 0) & (first == 0) & (m < num_rows)
            tiles = _sum_of_residual(tiles, residual + place, total + place, one, column, writes, SIZE, BLOCK)
        if HAS_NORM:
            tiles = _normed(tiles, scales, out, EPS, SIZE, VECTOR)
        found = _product(tiles, held, VECTOR)
        if HAS_BIAS:
            found += added
        if GATED:
            up = _product(tiles, held_up, VECTOR)
            if HAS_BIAS:
                up += added_up
            gate = found.to(out.dtype.element_ty).to(tl.float32)
            gate = activate(gate, "silu").to(out.dtype.element_ty).to(tl.float32)
            found = gate * up.to(out.dtype.element_ty).to(tl.float32)
        inside = (tl.arange(0, ROWS) + first < OUT) & (m < num_rows)
        tl.store(out + m * OUT + first + tl.arange(0, ROWS), found.to(out.dtype.element_ty), inside)

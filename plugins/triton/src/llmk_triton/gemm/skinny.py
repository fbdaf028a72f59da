"""GEMM with small M on tensor cores: the weight is read once, and streamed through shared memory.

If the weight has too few tiles to keep all memory channels busy, its K dimension is split between programs, and the
last to finish adds the partial sums in a fixed order (split-K). The GEMM may be computed transposed, with the weight as
first operand: Hopper's tensor cores need 64 rows of the first operand, but only 8 of the second. Tiles may be loaded by
TMA, for which one thread starts the copy of a whole tile. Intermediates are rounded where :mod:`llmk.reference` rounds
them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.activations import activate
from llmk_triton.gemm.split_k import is_last, store_part, sum_of_splits


@triton.jit
def _prefetch(weight, row, first, SIZE: tl.constexpr, LINES: tl.constexpr):
    """Prefetches up to ``LINES`` cache lines of each ``row`` of ``SIZE`` elements from ``first`` on to L2, without
    waiting."""
    LINE: tl.constexpr = 128 * 8 // weight.dtype.element_ty.primitive_bitwidth
    column = tl.minimum(first + tl.arange(0, LINES) * LINE, SIZE - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [weight + row[:, None] * SIZE + column[None, :]],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _row_factors(x, residual, row, like, EPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
                 HAS_RESIDUAL: tl.constexpr, FACTOR: tl.constexpr):  # fmt: skip
    """The norm's factor (reciprocal of the root mean square) of each ``row`` of ``x`` (plus ``residual``): float32
    ``[rows, 1]``."""
    squares = tl.zeros([row.shape[0], BLOCK], tl.float32)
    for first in tl.range(0, SIZE, BLOCK):
        value = _summed(
            x, residual, row, first + tl.arange(0, BLOCK), like, SIZE, SIZE % BLOCK == 0, HAS_RESIDUAL, FACTOR
        )
        squares += value * value
    return tl.rsqrt(tl.sum(squares, axis=1) / SIZE + EPS)[:, None]


@triton.jit
def _summed(x, residual, row, column, like, SIZE: tl.constexpr, WHOLE: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
            FACTOR: tl.constexpr):  # fmt: skip
    """A tile of ``FACTOR * x + residual``, rounded, as float32. Zeros beyond the end of a row; with ``WHOLE``, rows
    consist of whole tiles."""
    place = row[:, None] * SIZE + column[None, :]
    value = _load(x + place, column, SIZE, WHOLE).to(tl.float32)
    if FACTOR != 1.0:
        value = (value * FACTOR).to(like.dtype.element_ty).to(tl.float32)
    if HAS_RESIDUAL:
        value += _load(residual + place, column, SIZE, WHOLE).to(tl.float32)
        value = value.to(like.dtype.element_ty).to(tl.float32)
    return value


@triton.jit
def _load(place, column, SIZE: tl.constexpr, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(place)
    else:
        return tl.load(place, (column < SIZE)[None, :], other=0.0)


@triton.jit
def _activated(tile, like, KIND: tl.constexpr):
    """An activation of a tile, rounded to ``like``'s dtype; without a ``KIND``, the tile."""
    if KIND == "":
        return tile
    else:
        return activate(tile.to(tl.float32), KIND).to(like.dtype.element_ty)


@triton.jit
def _tile(place, tiles, row, first, column, SIZE: tl.constexpr, WHOLE: tl.constexpr, BULK: tl.constexpr):
    """Loads the tile at ``place``; with ``BULK``, by TMA through the descriptor ``tiles``, from ``row`` and column
    ``first`` on, with zeros out of bounds."""
    if BULK:
        return tiles.load([row, first])
    else:
        return _load(place, column, SIZE, WHOLE)


@triton.jit
def _add_dot(acc, tile, weight, SWAP: tl.constexpr, PRECISION: tl.constexpr):
    """``acc + tile @ weight.T``, or, with ``SWAP``, ``acc + weight @ tile.T``."""
    weight = weight.to(tile.dtype)
    if SWAP:
        return tl.dot(weight, tl.trans(tile), acc, input_precision=PRECISION)
    else:
        return tl.dot(tile, tl.trans(weight), acc, input_precision=PRECISION)


@triton.jit
def _add_scaled(
    acc, tile, weight, scale, column, first, SIZE: tl.constexpr, SCALED: tl.constexpr, SWAP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """:func:`_add_dot` for a weight with a ``scale`` per block of ``SCALED`` rows and columns. The tile starts at
    column ``first`` of the weight; ``column`` are the result's columns."""
    if SCALED <= 1:
        return _add_dot(acc, tile, weight, SWAP, PRECISION)
    else:
        plain = _add_dot(tl.zeros_like(acc), tile, weight, SWAP, PRECISION)
        factor = tl.load(scale + column // SCALED * tl.cdiv(SIZE, SCALED) + first // SCALED)
        return acc + plain * (factor[:, None] if SWAP else factor[None, :])


@triton.jit
def _finish(acc, scale, bias, column, like, SCALED: tl.constexpr, HAS_BIAS: tl.constexpr):
    """``acc`` times the scale of its ``column``, plus the bias, rounded to ``like``'s dtype, as float32."""
    if SCALED == 1:
        acc *= tl.load(scale + column)
    if HAS_BIAS:
        acc += tl.load(bias + column).to(tl.float32)
    return acc.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _store(acc, acc_up, scale, bias, out, m, n, num_rows, OUT: tl.constexpr, SWAP: tl.constexpr, SCALED: tl.constexpr,
           HAS_BIAS: tl.constexpr, GATED: tl.constexpr):  # fmt: skip
    """Applies the epilogue to ``acc`` and ``acc_up``, and stores the result in rows ``m`` and columns ``n`` of
    ``out``."""
    row, column = (m[None, :], n[:, None]) if SWAP else (m[:, None], n[None, :])
    known = tl.minimum(column, OUT - 1)
    found = _finish(acc, scale, bias, known, out, SCALED, HAS_BIAS)
    if GATED:
        up = _finish(acc_up, scale + OUT, bias + OUT, known, out, SCALED, HAS_BIAS)
        found = activate(found, "silu").to(out.dtype.element_ty).to(tl.float32) * up
    tl.store(out + row * OUT + column, found.to(out.dtype.element_ty), (row < num_rows) & (column < OUT))


@triton.jit(do_not_specialize=["num_rows"])
def skinny_kernel(
    x, residual, norm_weight, weight, scale, bias, out, total, partial, arrived, x_tiles, weight_tiles, num_rows,
    EPS: tl.constexpr, SIZE: tl.constexpr, OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SWAP: tl.constexpr, BULK: tl.constexpr, LATE: tl.constexpr,
    LINES: tl.constexpr, PRECISION: tl.constexpr, HAS_NORM: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    FACTOR: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = f(norm(FACTOR * x + residual) @ weight.T + bias)``; the grid is ``[tiles of columns, SPLITS, tiles of
    rows]``.

    Tensors and ``f`` are those of :func:`llmk_triton.gemm.gemv.gemv_kernel`, with any number of rows. ``partial``
    (float32 ``[tiles, SPLITS, BLOCK_M * BLOCK_N]``, twice that with ``GATED``) holds the splits' partial sums;
    ``arrived`` (int32 ``[tiles]``) counts finished splits and is zero before and after. Before it waits, a program
    prefetches ``LINES`` cache lines of each weight row that it reads. With ``BULK``, which excludes a norm, ``x_tiles``
    and ``weight_tiles`` are TMA descriptors of ``x`` and ``weight`` with tiles of ``[BLOCK_M, BLOCK_K]`` and
    ``[BLOCK_N, BLOCK_K]``. With ``LATE``, the next kernel may start only once every program has read its part.
    """
    pdl.release(PDL and not LATE)
    block, split = tl.program_id(0), tl.program_id(1)
    # Rows and columns out of bounds are computed from the last one, and their results are not stored.
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(m, num_rows - 1)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    EACH: tl.constexpr = (SIZE + BLOCK_K * SPLITS - 1) // (BLOCK_K * SPLITS) * BLOCK_K
    WHOLE: tl.constexpr = SIZE % BLOCK_K == 0
    at = weight + (block * BLOCK_N).to(tl.int64) * SIZE
    within = tl.minimum(n, OUT - 1) - block * BLOCK_N
    if PDL:
        _prefetch(at, within, split * EACH, SIZE, LINES)
        if GATED:
            _prefetch(at + OUT * SIZE, within, split * EACH, SIZE, LINES)
    pdl.wait(PDL)
    if HAS_NORM:
        factor = _row_factors(x, residual, row, out, EPS, SIZE, 4096 // BLOCK_M, HAS_RESIDUAL, FACTOR)
    acc = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
    acc_up = acc
    for first in tl.range(split * EACH, tl.minimum(split * EACH + EACH, SIZE), BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        if HAS_NORM:
            tile = _summed(x, residual, row, k, out, SIZE, WHOLE, HAS_RESIDUAL, FACTOR)
            if HAS_RESIDUAL:
                writes = (block == 0) & (m < num_rows)[:, None] & (k < SIZE)[None, :]
                tl.store(total + row[:, None] * SIZE + k[None, :], tile.to(total.dtype.element_ty), writes)
            norm = tl.load(norm_weight + k, k < SIZE, other=0.0).to(tl.float32)
            tile = (tile * factor).to(out.dtype.element_ty).to(tl.float32)
            tile = (tile * norm[None, :]).to(out.dtype.element_ty)
        else:
            place = x + row[:, None] * SIZE + k[None, :]
            tile = _tile(place, x_tiles, tl.program_id(2) * BLOCK_M, first, k, SIZE, WHOLE, BULK)
            tile = _activated(tile, out, ACTIVATION)
        place = at + within[:, None] * SIZE + k[None, :]
        known = within + block * BLOCK_N
        held = _tile(place, weight_tiles, block * BLOCK_N, first, k, SIZE, WHOLE, BULK)
        acc = _add_scaled(acc, tile, held, scale, known, first, SIZE, SCALED, SWAP, PRECISION)
        if GATED:
            held = _tile(place + OUT * SIZE, weight_tiles, OUT + block * BLOCK_N, first, k, SIZE, WHOLE, BULK)
            acc_up = _add_scaled(acc_up, tile, held, scale, OUT + known, first, SIZE, SCALED, SWAP, PRECISION)
    pdl.release(PDL and LATE)
    if SPLITS > 1:
        owner = tl.program_id(2) * tl.num_programs(0) + block
        partial += owner.to(tl.int64) * (SPLITS * BLOCK_M * BLOCK_N * (2 if GATED else 1))
        store_part(acc, partial + split * acc.numel)
        if GATED:
            store_part(acc_up, partial + (SPLITS + split) * acc.numel)
        if not is_last(arrived + owner, SPLITS):
            return
        acc = sum_of_splits(acc, partial, SPLITS)
        if GATED:
            acc_up = sum_of_splits(acc_up, partial + SPLITS * BLOCK_M * BLOCK_N, SPLITS)
    _store(acc, acc_up, scale, bias, out, m, n, num_rows, OUT, SWAP, SCALED, HAS_BIAS, GATED)

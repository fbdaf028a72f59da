"""Products with few rows of activations by matrix units: the weight is read once, and streamed through shared memory.

Where the weight alone has too few tiles to keep all memory busy, its rows are split between programs, of which the last
to finish adds what all of them found, in one order (split-K). The product may be computed transposed, weight first:
Hopper's matrix units want 64 rows of their first operand, and 8 of the second will do. Tiles may come by the bulk copy
engine, which one thread asks for a whole tile. Roundings are where :mod:`llmk.reference` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.common.activations import activate


@triton.jit
def _prefetch(weight, row, first, SIZE: tl.constexpr, LINES: tl.constexpr):
    """Asks for up to ``LINES`` lines of each ``row`` of ``SIZE`` elements from ``first`` on, and waits for none: they
    come to the cache that all processors share."""
    LINE: tl.constexpr = 128 * 8 // weight.dtype.element_ty.primitive_bitwidth
    column = tl.minimum(first + tl.arange(0, LINES) * LINE, SIZE - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [weight + row[:, None] * SIZE + column[None, :]],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _row_factors(x, residual, row, like, EPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
                 HAS_RESIDUAL: tl.constexpr):  # fmt: skip
    """What the norm multiplies each of ``row`` of ``x`` (plus ``residual``) with: float32 ``[rows, 1]``."""
    squares = tl.zeros([row.shape[0], BLOCK], tl.float32)
    for first in tl.range(0, SIZE, BLOCK):
        value = _summed(x, residual, row, first + tl.arange(0, BLOCK), like, SIZE, SIZE % BLOCK == 0, HAS_RESIDUAL)
        squares += value * value
    return tl.rsqrt(tl.sum(squares, axis=1) / SIZE + EPS)[:, None]


@triton.jit
def _summed(x, residual, row, column, like, SIZE: tl.constexpr, WHOLE: tl.constexpr, HAS_RESIDUAL: tl.constexpr):
    """A tile of ``x + residual``, rounded; float32. Zeros beyond the end of a row, unless it is ``WHOLE`` tiles."""
    place = row[:, None] * SIZE + column[None, :]
    value = _load(x + place, column, SIZE, WHOLE).to(tl.float32)
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
def _tile(place, tiles, row, first, column, SIZE: tl.constexpr, WHOLE: tl.constexpr, BULK: tl.constexpr):
    """What lies at ``place``; with ``BULK``, the tile of the descriptor ``tiles`` from ``row`` and column ``first`` on,
    with zeros for rows and columns that there are not."""
    if BULK:
        return tiles.load([row, first])
    else:
        return _load(place, column, SIZE, WHOLE)


@triton.jit
def _add_product(acc, tile, weight, SWAP: tl.constexpr, PRECISION: tl.constexpr):
    """``acc`` and ``tile`` times the transpose of ``weight``, or, with ``SWAP``, ``weight`` times that of ``tile``."""
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
    """:func:`_add_product` of a tile of the weight that lies in blocks of ``SCALED`` rows and columns, from column
    ``first`` on, which have a number of ``scale`` each; ``column`` are the result's."""
    if SCALED <= 1:
        return _add_product(acc, tile, weight, SWAP, PRECISION)
    else:
        product = _add_product(tl.zeros_like(acc), tile, weight, SWAP, PRECISION)
        factor = tl.load(scale + column // SCALED * tl.cdiv(SIZE, SCALED) + first // SCALED)
        return acc + product * (factor[:, None] if SWAP else factor[None, :])


@triton.jit
def _leave(acc, acc_up, partial, arrived, split, SPLITS: tl.constexpr, GATED: tl.constexpr):
    """Leaves a split's sums where the last one finds them; returns whether this is the last, and then counts from zero
    again."""
    place = tl.arange(0, acc.shape[0])[:, None] * acc.shape[1] + tl.arange(0, acc.shape[1])[None, :]
    tl.store(partial + split * acc.numel + place, acc)
    if GATED:
        tl.store(partial + (SPLITS + split) * acc.numel + place, acc_up)
    # All of the program's stores come before the count that tells of them.
    tl.debug_barrier()
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS - 1
    tl.store(arrived, 0, last)
    return last


@triton.jit
def _sum_of_splits(like, partial, SPLITS: tl.constexpr):
    """The sum of what all splits left at ``partial``, tiles of the shape of ``like``, in their order."""
    place = tl.arange(0, like.shape[0])[:, None] * like.shape[1] + tl.arange(0, like.shape[1])[None, :]
    acc = tl.zeros_like(like)
    for split in tl.static_range(SPLITS):
        # Other programs wrote these: they must not come from this processor's own cache.
        acc += tl.load(partial + split * like.numel + place, cache_modifier=".cg")
    return acc


@triton.jit
def _finish(acc, scale, bias, column, like, SCALED: tl.constexpr, HAS_BIAS: tl.constexpr):
    """``acc``, whose ``column`` is given, times its scale, plus its bias, rounded to ``like``'s dtype; float32."""
    if SCALED == 1:
        acc *= tl.load(scale + column)
    if HAS_BIAS:
        acc += tl.load(bias + column).to(tl.float32)
    return acc.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _store(acc, acc_up, scale, bias, out, m, n, num_rows, OUT: tl.constexpr, SWAP: tl.constexpr, SCALED: tl.constexpr,
           HAS_BIAS: tl.constexpr, GATED: tl.constexpr):  # fmt: skip
    """Stores what ``acc`` and ``acc_up`` come to in rows ``m`` and columns ``n`` of ``out``."""
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
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = f(norm(x + residual) @ weight.T + bias)``; programs are ``[tiles of columns, SPLITS, tiles of rows]``.

    Tensors and ``f`` are those of :func:`llmk_triton.gemm.gemv.gemv_kernel`, with any number of rows. ``partial``
    (float32 ``[tiles, SPLITS, BLOCK_M * BLOCK_N]``, twice that with ``GATED``) is where splits meet, ``arrived`` (int32
    ``[tiles]``) is zero before and after. Before it waits, a program asks for ``LINES`` lines of each row that it
    reads. With ``BULK``, which no norm goes with, ``x_tiles`` and ``weight_tiles`` are descriptors of ``x`` and
    ``weight`` in tiles of ``[BLOCK_M, BLOCK_K]`` and ``[BLOCK_N, BLOCK_K]``. With ``LATE``, the next kernel may start
    once every program has read its part.
    """
    pdl.release(PDL and not LATE)
    block, split = tl.program_id(0), tl.program_id(1)
    # Rows and columns beyond the last are computed from the last: results of theirs are not stored.
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
        factor = _row_factors(x, residual, row, out, EPS, SIZE, 4096 // BLOCK_M, HAS_RESIDUAL)
    acc = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
    acc_up = acc
    for first in tl.range(split * EACH, tl.minimum(split * EACH + EACH, SIZE), BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        if HAS_NORM:
            tile = _summed(x, residual, row, k, out, SIZE, WHOLE, HAS_RESIDUAL)
            if HAS_RESIDUAL:
                writes = (block == 0) & (m < num_rows)[:, None] & (k < SIZE)[None, :]
                tl.store(total + row[:, None] * SIZE + k[None, :], tile.to(total.dtype.element_ty), writes)
            norm = tl.load(norm_weight + k, k < SIZE, other=0.0).to(tl.float32)
            tile = (tile * factor).to(out.dtype.element_ty).to(tl.float32)
            tile = (tile * norm[None, :]).to(out.dtype.element_ty)
        else:
            place = x + row[:, None] * SIZE + k[None, :]
            tile = _tile(place, x_tiles, tl.program_id(2) * BLOCK_M, first, k, SIZE, WHOLE, BULK)
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
        if not _leave(acc, acc_up, partial, arrived + owner, split, SPLITS, GATED):
            return
        acc = _sum_of_splits(acc, partial, SPLITS)
        if GATED:
            acc_up = _sum_of_splits(acc_up, partial + SPLITS * BLOCK_M * BLOCK_N, SPLITS)
    _store(acc, acc_up, scale, bias, out, m, n, num_rows, OUT, SWAP, SCALED, HAS_BIAS, GATED)

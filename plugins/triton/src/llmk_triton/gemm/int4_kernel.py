"""GEMMs with 4-bit weights on tensor cores. Words of 16 bits hold four numbers: those of a slot are a tile of the
operand as they lie in registers, so that nothing moves between threads while numbers are widened.

A tile of words, ``[ROWS, WIDTH]``, has ``4 * WIDTH`` inputs of ``ROWS`` outputs; in slot ``s`` of word ``j`` is input
``WIDTH * s + j``. Tiles of the same outputs follow each other, so that a program reads one run of memory. Sums of a
group of inputs are sums of exact terms, and are scaled in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.gemm.split_k import is_last, store_part, sum_of_splits

ROWS = 64
"""Outputs of a tile of words."""


@triton.jit
def _numbers(words, zero, like, SLOT: tl.constexpr, HAS_ZERO: tl.constexpr, PTX: tl.constexpr):
    """The numbers in a slot of ``words`` minus ``zero`` (float32 ``[rows, 1]``), in ``like``'s dtype, which is exact.
    ``PTX`` is the code for one slot, which takes two words at once; empty: without."""
    if PTX == "":
        found = ((words >> (4 * SLOT)) & 15).to(tl.float32)
        return (found - (zero if HAS_ZERO else 8.0)).to(like.dtype)
    else:
        OFFSET: tl.constexpr = 128.0 if like.dtype == tl.bfloat16 else 1024.0
        less = -(OFFSET + (zero if HAS_ZERO else tl.full([1, 1], 8.0, tl.float32)))
        return tl.inline_asm_elementwise(
            PTX, "=r,r,r", [words, less.to(like.dtype)], dtype=like.dtype, is_pure=True, pack=2
        )  # fmt: skip


@triton.jit
def _add_slot(sums, words, zero, rows, first, here, SIZE: tl.constexpr, WIDTH: tl.constexpr, SLOT: tl.constexpr,
              HAS_ZERO: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    """``sums`` plus a slot of ``words`` times the activations at ``rows`` (``[rows, WIDTH]``) from
    column ``first`` on; ``here`` are the rows that exist."""
    first += SLOT * WIDTH
    inside = here[:, None]
    if SIZE % (4 * WIDTH):
        inside &= (first + tl.arange(0, WIDTH) < SIZE)[None, :]
    value = tl.load(rows + first, inside, other=0.0)
    return tl.dot(_numbers(words, zero, value, SLOT, HAS_ZERO, PTX), tl.trans(value), sums)


@triton.jit
def _of_group(values, group, STRIDE: tl.constexpr):
    """The scales, or zero points, of a group, of which ``values`` are the places of the first: float32
    ``[rows, 1]``."""
    return tl.load(values + group * STRIDE).to(tl.float32)[:, None]


@triton.jit
def _prefetch(first, SIZE: tl.constexpr, LINES: tl.constexpr):
    """Prefetches the first of ``SIZE`` words from ``first`` on, up to ``LINES`` cache lines of 64, to L2, without
    waiting."""
    word = tl.minimum(tl.arange(0, LINES) * 64, SIZE - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [first + word], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def places(BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the words of ``BLOCK_N`` outputs of whole tiles are, from the first of them on: ``[BLOCK_N, WIDTH]``."""
    n = tl.arange(0, BLOCK_N)
    if BLOCK_N > 64:
        n = n // 64 * (BLOCKS * 64) + n % 64
    return (n * WIDTH)[:, None] + tl.arange(0, WIDTH)[None, :]


@triton.jit
def multiplied(
    rows, here, words, scale, zero, start, stop,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_ZERO: tl.constexpr, PTX_0: tl.constexpr, PTX_1: tl.constexpr,
    PTX_2: tl.constexpr, PTX_3: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``weight @ x.T`` over tiles ``start`` to ``stop - 1`` of words: float32 ``[BLOCK_N, BLOCK_M]``.

    ``rows`` ``[BLOCK_M, WIDTH]`` point at the first activations of each row, of which those that are ``here`` exist;
    ``words`` ``[BLOCK_N, WIDTH]`` at the first tile of all; ``scale`` and ``zero`` ``[BLOCK_N]`` at the first group's.
    Waits before it reads activations.
    """
    INPUTS: tl.constexpr = 4 * WIDTH
    LAST: tl.constexpr = (SIZE - 1) // GROUP
    HALF: tl.constexpr = INPUTS // 2
    group = tl.minimum(start * INPUTS // GROUP, LAST)
    other = tl.minimum((start * INPUTS + HALF) // GROUP, LAST)
    low = _of_group(scale, group, STRIDE)
    high = _of_group(scale, other, STRIDE) if PARTS > 1 else low
    less = _of_group(zero, group, STRIDE) if HAS_ZERO else low
    less_high = _of_group(zero, other, STRIDE) if HAS_ZERO and PARTS > 1 else less
    pdl.wait(PDL)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for block in tl.range(start, stop):
        # Those of the next tile are on their way meanwhile: they don't pass through the pipeline of the operands.
        group = tl.minimum((block + 1) * INPUTS // GROUP, LAST)
        next_low = _of_group(scale, group, STRIDE)
        next_less = _of_group(zero, group, STRIDE) if HAS_ZERO else next_low
        next_high, next_less_high = next_low, next_less
        if PARTS > 1:
            other = tl.minimum(((block + 1) * INPUTS + HALF) // GROUP, LAST)
            next_high = _of_group(scale, other, STRIDE)
            next_less_high = _of_group(zero, other, STRIDE) if HAS_ZERO else next_high
        held = tl.load(words + block * (64 * WIDTH))
        sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        sums = _add_slot(sums, held, less, rows, block * INPUTS, here, SIZE, WIDTH, 0, HAS_ZERO, PTX_0)
        sums = _add_slot(sums, held, less, rows, block * INPUTS, here, SIZE, WIDTH, 1, HAS_ZERO, PTX_1)
        if PARTS > 1:
            acc += sums * low
            sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        sums = _add_slot(sums, held, less_high, rows, block * INPUTS, here, SIZE, WIDTH, 2, HAS_ZERO, PTX_2)
        sums = _add_slot(sums, held, less_high, rows, block * INPUTS, here, SIZE, WIDTH, 3, HAS_ZERO, PTX_3)
        acc += sums * (high if PARTS > 1 else low)
        low, high, less, less_high = next_low, next_high, next_less, next_less_high
    return acc


@triton.jit(do_not_specialize=["num_rows"])
def int4_kernel(
    x, words, scale, zero, bias, out, partial, arrived, num_rows,
    SIZE: tl.constexpr, OUT: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    LINES: tl.constexpr, HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, PTX_0: tl.constexpr, PTX_1: tl.constexpr,
    PTX_2: tl.constexpr, PTX_3: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = x @ weight.T + bias``; the grid is ``[tiles of outputs, SPLITS, tiles of rows]``.

    ``x`` is ``[num_rows, SIZE]``, ``out`` ``[num_rows, OUT]``; ``words`` int16 ``[STRIDE / 64, BLOCKS, 64, WIDTH]``;
    ``scale`` and ``zero`` ``[groups, STRIDE]``, of ``GROUP`` inputs. A tile of words has inputs of ``PARTS`` groups.
    Before it waits, a program prefetches ``LINES`` cache lines of the words that it reads. ``partial`` and ``arrived``
    are as in :func:`llmk_triton.gemm.skinny.skinny_kernel`.
    """
    pdl.release(PDL)
    EACH: tl.constexpr = (BLOCKS + SPLITS - 1) // SPLITS
    tile, split = tl.program_id(0), tl.program_id(1)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = words + tile.to(tl.int64) * (BLOCK_N * BLOCKS * WIDTH) + places(BLOCK_N, BLOCKS, WIDTH)
    start, stop = split * EACH, tl.minimum(split * EACH + EACH, BLOCKS)
    if PDL:
        # Within what was allocated, although the last split may have fewer tiles.
        ahead = words + tile.to(tl.int64) * (BLOCK_N * BLOCKS * WIDTH)
        _prefetch(ahead + tl.minimum(start, BLOCKS - EACH) * (64 * WIDTH), EACH * 64 * WIDTH, LINES)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = x + m.to(tl.int64)[:, None] * SIZE + tl.arange(0, WIDTH)[None, :]
    acc = multiplied(
        rows, m < num_rows, at, scale + n, zero + n, start, stop, SIZE, STRIDE, GROUP, WIDTH, PARTS, BLOCK_M, BLOCK_N,
        HAS_ZERO, PTX_0, PTX_1, PTX_2, PTX_3, PDL,
    )  # fmt: skip
    if SPLITS > 1:
        owner = tl.program_id(2) * tl.num_programs(0) + tile
        partial += owner.to(tl.int64) * (SPLITS * BLOCK_M * BLOCK_N)
        store_part(acc, partial + split * acc.numel)
        if not is_last(arrived + owner, SPLITS):
            return
        acc = sum_of_splits(acc, partial, SPLITS)
    if HAS_BIAS:
        acc += tl.load(bias + tl.minimum(n, OUT - 1)).to(tl.float32)[:, None]
    place = m.to(tl.int64)[None, :] * OUT + n[:, None]
    tl.store(out + place, acc.to(out.dtype.element_ty), (m < num_rows)[None, :] & (n < OUT)[:, None])


@triton.jit
def widen_kernel(
    out, words, scale, zero, SIZE: tl.constexpr, OUT: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, HAS_ZERO: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out`` ``[OUT, SIZE]``: the weight, rounded once; the grid is ``[tiles of outputs, BLOCKS]``. Other arguments
    are those of :func:`int4_kernel`."""
    pdl.release(PDL)
    block = tl.program_id(1)
    n = tl.program_id(0) * 64 + tl.arange(0, 64)
    column = tl.arange(0, WIDTH)
    tile = tl.program_id(0).to(tl.int64) * BLOCKS + block
    held = tl.load(words + tile * (64 * WIDTH) + tl.arange(0, 64)[:, None] * WIDTH + column[None, :])
    pdl.wait(PDL)
    LAST: tl.constexpr = (SIZE - 1) // GROUP
    for slot in tl.static_range(4):
        first = block * (4 * WIDTH) + slot * WIDTH
        group = tl.minimum(first // GROUP, LAST)
        number = ((held >> (4 * slot)) & 15).to(tl.float32)
        number -= _of_group(zero + n, group, STRIDE) if HAS_ZERO else 8.0
        number *= _of_group(scale + n, group, STRIDE)
        inside = (n < OUT)[:, None] & (first + column < SIZE)[None, :]
        place = n.to(tl.int64)[:, None] * SIZE + (first + column)[None, :]
        tl.store(out + place, number.to(out.dtype.element_ty), inside)

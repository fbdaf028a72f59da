"""Grouped GEMM of experts with 4-bit weights (:mod:`llmk_triton.gemm.int4_kernel`)."""

from __future__ import annotations

import triton
import triton.language as tl

from llmk_triton.common import pdl
from llmk_triton.gemm.int4_kernel import multiplied, places
from llmk_triton.moe.grouped import find_rows


@triton.jit(do_not_specialize=["num_tokens"])
def experts_int4_kernel(
    out, x, words, scale, zero, counts, order, num_tokens,
    SIZE: tl.constexpr, OUT: tl.constexpr, TILES: tl.constexpr, SHARED: tl.constexpr, EXPERTS: tl.constexpr,
    EXPERT_BLOCK: tl.constexpr, ROWS: tl.constexpr, STRIDE: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, HAS_ZERO: tl.constexpr, PTX_0: tl.constexpr, PTX_1: tl.constexpr,
    PTX_2: tl.constexpr, PTX_3: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out[pair] = x[pair // SHARED] @ weight[expert].T``: ``[pairs, OUT]`` of ``x`` ``[pairs / SHARED, SIZE]``.

    A program computes a tile of 64 outputs of ``ROWS`` rows of one expert; programs of the same rows are consecutive.
    Every expert has ``TILES`` tiles of ``words``; ``counts`` and ``order`` are those of
    :func:`llmk_triton.moe.routing.route_kernel`.
    """
    parts: tl.constexpr = (OUT + 63) // 64
    pdl.wait(PDL)
    pdl.release(PDL)
    block = tl.program_id(0) // parts
    expert, length, pair = find_rows(counts, order, num_tokens, block, EXPERTS, EXPERT_BLOCK, ROWS)
    if length <= 0:
        return
    feature = tl.program_id(0) % parts * 64 + tl.arange(0, 64)
    tile = expert.to(tl.int64) * TILES + tl.program_id(0) % parts
    n = tile * 64 + tl.arange(0, 64)
    here = tl.arange(0, ROWS) < length
    rows = x + (pair // SHARED).to(tl.int64)[:, None] * SIZE + tl.arange(0, WIDTH)[None, :]
    at = words + tile * (64 * BLOCKS * WIDTH) + places(64, BLOCKS, WIDTH)
    acc = multiplied(
        rows, here, at, scale + n, zero + n, 0, BLOCKS, SIZE, STRIDE, GROUP, WIDTH, PARTS, ROWS, 64, HAS_ZERO, PTX_0,
        PTX_1, PTX_2, PTX_3, False,
    )  # fmt: skip
    place = pair.to(tl.int64)[None, :] * OUT + feature[:, None]
    tl.store(out + place, acc.to(out.dtype.element_ty), here[None, :] & (feature < OUT)[:, None])

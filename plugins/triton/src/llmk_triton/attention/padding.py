"""Fills rows of padding with zeros, without writing the others twice."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 8
"""Rows per program."""


def zero_padding(out: Tensor, query_start: Tensor) -> None:
    """Sets the rows of ``out`` (``[tokens, heads, head_dim]``, contiguous) that are no request's to 0: those from the
    last of ``query_start`` (int32 ``[requests + 1]``) on."""
    tokens, width = out.shape[0], out[0].numel()
    zero_padding_kernel[(triton.cdiv(tokens, _ROWS),)](
        out, query_start, query_start.shape[0] - 1, tokens, WIDTH=width, BLOCK=min(2048, triton.next_power_of_2(width)),
        ROWS=_ROWS, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_requests", "num_rows"])
def zero_padding_kernel(
    out, query_start, num_requests, num_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """The grid is ``[num_rows / ROWS]``; programs whose rows are all requests' do nothing."""
    first = tl.program_id(0) * ROWS
    end = tl.minimum(first + ROWS, num_rows)
    for row in range(tl.maximum(first, tl.load(query_start + num_requests)), end):
        for start in tl.static_range(0, WIDTH, BLOCK):
            column = start + tl.arange(0, BLOCK)
            zeros = tl.zeros([BLOCK], out.dtype.element_ty)
            tl.store(out + tl.cast(row, tl.int64) * WIDTH + column, zeros, column < WIDTH)

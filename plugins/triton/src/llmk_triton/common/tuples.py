"""Tuples of tiles that are built in a loop: Triton has neither comprehensions nor unpacking."""

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 (Triton's interpreter looks for it beside every function)


@triton.jit
def nothing():
    """A tuple to append to."""
    return ()


@triton.jit
def append(tiles, tile):
    """``tiles``, and ``tile`` behind them."""
    return tiles + (tile,)  # noqa: RUF005

"""Helpers to build tuples of tiles in a loop: Triton has neither comprehensions nor unpacking."""

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 (Triton's interpreter looks it up in the module of every function)


@triton.jit
def nothing():
    """An empty tuple."""
    return ()


@triton.jit
def append(tiles, tile):
    """``tiles`` with ``tile`` appended."""
    return tiles + (tile,)  # noqa: RUF005

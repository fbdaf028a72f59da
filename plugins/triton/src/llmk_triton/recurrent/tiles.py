"""How the states of heads are spread over programs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from triton.backends.compiler import GPUTarget

from llmk_triton.common.targets import num_multiprocessors

_PROGRAMS = 4
"""Programs per multiprocessor up to which states are spread further."""
_MOST_ELEMENTS = 4096
"""Of a state in one program's registers."""
_NARROW = 128
"""Columns of a state up to which four warps have enough registers for a chunk."""
_PER_WARP = 512
"""16 elements per thread."""


def state_rows(size: int, states: int, columns: int, device: torch.device) -> int:
    """Rows of ``size`` (a power of two) that a program has of each of ``states`` states with so many columns: few where
    otherwise multiprocessors would be idle."""
    rows: int = min(triton.next_power_of_2(size), max(1, _MOST_ELEMENTS // columns))
    while rows > 8 and states * triton.cdiv(size, rows) < _PROGRAMS * num_multiprocessors(device):
        rows //= 2
    return rows


def warps_for(elements: int) -> int:
    """Warps of a program with so many elements of a state."""
    return max(1, min(4, elements // _PER_WARP))


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """Tile of a kernel that computes ``tokens`` at a time, on ``rows`` of a state; with Triton's ``num_warps``."""

    tokens: int
    rows: int
    warps: int


def chunk_tile(target: GPUTarget, size: int, states: int, device: torch.device, columns: int = _NARROW) -> ChunkTile:
    """The tile for ``states`` states of ``size`` rows of ``columns``: few rows where otherwise multiprocessors would be
    idle. More tokens at a time fit in registers only where matrix units read shared memory. Wide states need those of
    twice as many warps, except on AMD's GPUs, where a thread of four warps has twice as many."""
    rows = max(16, min(32, triton.next_power_of_2(size)))
    while rows > 16 and states * triton.cdiv(size, rows) < num_multiprocessors(device):
        rows //= 2
    tokens = 64 if target.backend == "cuda" and target.arch >= 90 else 32
    return ChunkTile(tokens, rows, 8 if columns > _NARROW and target.backend != "hip" else 4)

"""How large the tiles of attention are, by the device that they are for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

SHARED_MEMORY = {
    80: 163 << 10,
    86: 99 << 10,
    87: 163 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    103: 227 << 10,
    120: 99 << 10,
    121: 99 << 10,
    "gfx90a": 64 << 10,
    "gfx942": 64 << 10,
    "gfx950": 160 << 10,
}
"""Bytes that one program may have, by Triton's name of the architecture. Others get what all of them have."""

LEAST_SHARED = 64 << 10


@dataclass(frozen=True, slots=True)
class Tile:
    """``rows`` of queries meet ``keys`` at a time; ``warps`` and ``stages`` are Triton's. ``registers`` are what a
    thread has at most, where that is fewer than the compiler would take (NVIDIA only; 0: as it likes)."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int = 0

    def options(self) -> dict[str, int]:
        """What a kernel is launched with."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


@cache
def current_target() -> GPUTarget:
    """The device that kernels are compiled for; some GPU where Triton interprets them."""
    if triton.knobs.runtime.interpret:
        return GPUTarget("cuda", 80, 32)
    target: GPUTarget = driver.active.get_current_target()
    return target


def num_cores(device: torch.device) -> int:
    """Multiprocessors of the device."""
    module = torch.get_device_module(device)
    properties = getattr(module, "get_device_properties", lambda device: None)(device)
    return int(getattr(properties, "multi_processor_count", 64))


def prefill_tile(target: GPUTarget, head_dim: int, itemsize: int, group: int) -> Tile:
    """For many queries of a request, ``group`` heads each: as large a tile as registers hold."""
    row, least = head_dim * itemsize, triton.next_power_of_2(group)
    wide = row > 256
    if small_waves(target):
        return Tile(max(16 if itemsize == 4 else 32 if wide else 64, least), 16, 8, 1)
    if itemsize == 4:
        narrow = head_dim <= 128
        return Tile(max(32 if narrow else 16, least), 32 if narrow else 16, 4, 1)
    rows, keys = max(64 if wide else 128, least), 32 if wide else 64
    if target.backend == "hip":
        return _fit(target, row, Tile(rows, keys, 4, 2))
    return _fit(target, row, Tile(rows, keys, 8 if row > 128 else 4, 3))


def dot_precision(target: GPUTarget) -> str:
    """How products of float32 are computed to float32's precision: in three of tf32, where only that has units."""
    return "tf32x3" if target.backend == "cuda" else "ieee"


@dataclass(frozen=True, slots=True)
class Decoding:
    """How decoding requests are computed: ``tile`` by ``tile``, by ``programs`` per multiprocessor at most, of which
    each takes ``least`` keys of a request at least: for fewer, merging takes longer than reading."""

    tile: Tile
    programs: int
    least: int


def decoding(target: GPUTarget, head_dim: int, itemsize: int, group: int) -> tuple[Decoding, Decoding]:
    """For one query of ``group`` heads: where few requests leave most of the device empty, and where many fill it.

    Many have few keys in flight each, so that a multiprocessor has room for four programs: otherwise the last requests
    would run alone. Measured on an H200.
    """
    row = head_dim * itemsize
    rows = max(16, triton.next_power_of_2(group))
    if small_waves(target):
        same = Decoding(Tile(rows, 16, 4 if row <= 256 else 8, 1), 4, 256)
        return same, same
    if target.backend == "hip":
        same = Decoding(_fit(target, row, Tile(rows, max(16, min(64, 64 * 256 // row)), 4, 2)), 4, 256)
        return same, same
    keys = max(16, min(64, 64 * 256 // row))
    few = Decoding(_fit(target, row, Tile(rows, keys, 4, 3)), 3, 64)
    if SHARED_MEMORY.get(target.arch, LEAST_SHARED) <= 200 << 10 or row > 256 or rows > 16 or itemsize > 2:
        return few, Decoding(_fit(target, row, Tile(rows, max(16, keys // 2), 4, 2)), 4, 256)
    return few, Decoding(Tile(rows, 32, 2, 4), 4, 256)


def small_waves(target: GPUTarget) -> bool:
    """AMD's graphics chips, whose programs have half the threads, and so half the registers, of the others' for as many
    warps."""
    return bool(target.backend == "hip" and target.warp_size == 32)


def _fit(target: GPUTarget, row: int, tile: Tile) -> Tile:
    """``tile`` with as few stages less as shared memory asks for. ``row`` is the bytes of one key."""
    limit = SHARED_MEMORY.get(target.arch, LEAST_SHARED)
    stages = tile.stages
    while stages > 1 and tile.rows * row + 2 * stages * tile.keys * row > limit:
        stages -= 1
    return Tile(tile.rows, tile.keys, tile.warps, stages)

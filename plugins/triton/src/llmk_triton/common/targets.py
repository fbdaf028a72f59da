"""Tile sizes of attention, by target device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

SHARED_MEMORY: Mapping[int | str, int] = {
    80: 163 << 10,
    86: 99 << 10,
    87: 163 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    103: 227 << 10,
    120: 99 << 10,
    121: 99 << 10,
    "gfx950": 160 << 10,
    **dict.fromkeys(("pvc", "bmg", "lnl", "ptl"), 128 << 10),
}
"""Shared memory per program in bytes, by Triton's name of the architecture, or :func:`xpu_architecture`. For others,
``MIN_SHARED_MEMORY`` is assumed."""

MIN_SHARED_MEMORY = 64 << 10


@dataclass(frozen=True, slots=True)
class Tile:
    """Attention tile: ``rows`` query rows by ``keys`` keys, with Triton's ``num_warps`` and ``num_stages``.
    ``registers`` limits the registers per thread (NVIDIA only; 0: no limit)."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int = 0

    def options(self) -> dict[str, int]:
        """The kernel's launch options."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


@dataclass(frozen=True, slots=True)
class SpecializedTile:
    """Tile of :mod:`llmk_triton.attention.prefill_specialized`: ``keys`` per tile, and how many tiles shared memory
    holds: ``stages`` of keys and of values, ``query_stages`` of queries. ``loading`` and ``computing`` are registers
    per thread of those warps; what the three groups have together is 504."""

    keys: int
    stages: int
    query_stages: int
    loading: int
    computing: int


SPECIALIZED_ROWS = 128
"""Rows per work item: queries times the query heads that share a K/V head."""
SPECIALIZED_TILES = {
    64: SpecializedTile(128, 3, 2, 56, 224),
    128: SpecializedTile(128, 2, 2, 56, 224),
    256: SpecializedTile(64, 2, 1, 56, 224),
}
"""By ``head_dim``. Measured on an H100."""


@cache
def current_target() -> GPUTarget:
    """The device that kernels are compiled for; a default GPU under Triton's interpreter."""
    if triton.knobs.runtime.interpret:
        return GPUTarget("cuda", 80, 32)
    target: GPUTarget = driver.active.get_current_target()
    if target.backend == "xpu":
        # Triton has a table of properties in the place of a name, which no table can be keyed by.
        return GPUTarget("xpu", xpu_architecture(target.arch), target.warp_size)
    return target


_XPU_VERSIONS = (
    ("12.60", "pvc"),
    ("12.7", "mtl"),
    ("12.5", "dg2"),
    ("20.4", "lnl"),
    ("20.", "bmg"),
    ("30.", "ptl"),
)


def xpu_architecture(properties: Mapping[str, Any]) -> str:
    """The name of an Intel GPU's architecture, from the version that its driver says: ``"pvc"`` for ``12.60.7``; of
    unknown ones, ``"xe"``."""
    version = str(properties.get("version", ""))
    if version.startswith("12.74"):
        return "arl"
    return next((name for prefix, name in _XPU_VERSIONS if version.startswith(prefix)), "xe")


def num_multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of the device."""
    module = torch.get_device_module(device)
    properties = getattr(module, "get_device_properties", lambda device: None)(device)
    # Intel's GPUs have sub-slices, which is another word for them.
    return int(getattr(properties, "multi_processor_count", 0) or getattr(properties, "gpu_subslice_count", 64))


_WIDE_HEAD = 256
"""Elements of a head beyond which a program has registers for half as many rows, or for twice as many threads."""


def prefill_tile(target: GPUTarget, head_dim: int, itemsize: int, group: int) -> Tile:
    """The tile for requests with many queries, ``group`` query heads per K/V head: the largest that fits in
    registers."""
    row, least = head_dim * itemsize, triton.next_power_of_2(group)
    wide = row > 256
    if has_wave32(target):
        # gfx11 keeps each operand of its matrix instructions twice.
        few = itemsize == 4 or (wide and str(target.arch).startswith("gfx11"))
        return Tile(max(16 if few else 32 if wide else 64, least), 16, 8, 1)
    if itemsize == 4:
        narrow = head_dim <= 128
        return Tile(max(32 if narrow else 16, least), 32 if narrow else 16, 4, 1)
    rows, keys = max(64 if wide else 128, least), 32 if wide else 64
    if head_dim > _WIDE_HEAD:
        return _fit(target, row, Tile(max(32, least), 16 if target.backend == "hip" else 32, 8, 2))
    if target.backend == "hip":
        return _fit(target, row, Tile(rows, keys, 4, 2))
    if target.backend == "xpu":
        # Half as many rows by as many threads as elsewhere: a thread of a sub-group of 16 has 128 registers.
        return _fit(target, row, Tile(max(32 if wide else 64, least), 32, 8, 2))
    return _fit(target, row, Tile(rows, keys, 8 if row > 128 else 4, 3))


def dot_precision(target: GPUTarget) -> str:
    """The ``input_precision`` of float32 ``tl.dot`` for full precision: 3xTF32 on NVIDIA GPUs, whose tensor cores have
    no float32."""
    return "tf32x3" if target.backend == "cuda" else "ieee"


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Launch configuration of the decode kernel: ``tile``, at most ``programs`` programs per multiprocessor, and at
    least ``least`` keys per program, because for fewer keys merging takes longer than reading. ``fuses``: whether its
    registers are enough to norm, rotate and write the new token too."""

    tile: Tile
    programs: int
    least: int
    fuses: bool = True


def decode_configs(target: GPUTarget, head_dim: int, itemsize: int, group: int) -> tuple[DecodeConfig, DecodeConfig]:
    """The configurations for small batches, which leave most of the device idle, and for large batches, which fill it;
    one query per request, ``group`` query heads per K/V head.

    Large batches use small tiles, so that four programs fit on a multiprocessor: otherwise the last requests would run
    alone (tail effect). Measured on an H200.
    """
    row = head_dim * itemsize
    rows = max(16, triton.next_power_of_2(group))
    if head_dim > _WIDE_HEAD:
        same = DecodeConfig(_fit(target, row, Tile(rows, 16, 8, 2)), 3, 64, fuses=False)
        return same, same
    if has_wave32(target):
        # Each warp of gfx11 has all queries, twice.
        tight = row > 256 and str(target.arch).startswith("gfx11")
        same = DecodeConfig(Tile(rows, 16, 4 if row <= 256 else 16 if tight else 8, 1), 4, 256, fuses=not tight)
        return same, same
    if target.backend in ("hip", "xpu"):
        warps = 4 if rows <= 64 else 8
        same = DecodeConfig(_fit(target, row, Tile(rows, max(16, min(64, 64 * 256 // row)), warps, 2)), 4, 256)
        return same, same
    keys, warps = max(16, min(64, 64 * 256 // row)), 4 if rows <= 64 else 8
    few = DecodeConfig(_fit(target, row, Tile(rows, keys, warps, 3)), 3, 64)
    if SHARED_MEMORY.get(target.arch, MIN_SHARED_MEMORY) <= 200 << 10 or row > 256 or rows > 16 or itemsize > 2:
        return few, DecodeConfig(_fit(target, row, Tile(rows, max(16, keys // 2), warps, 2)), 4, 256)
    return few, DecodeConfig(Tile(rows, 32, 2, 4), 4, 256)


def has_wave32(target: GPUTarget) -> bool:
    """Whether a warp has 32 threads on an AMD GPU (RDNA): half the threads, and so half the registers, of CDNA for the
    same number of warps."""
    return bool(target.backend == "hip" and target.warp_size == 32)


def _fit(target: GPUTarget, row: int, tile: Tile) -> Tile:
    """``tile`` with as many stages as fit in shared memory. ``row`` is the bytes of one key."""
    limit = SHARED_MEMORY.get(target.arch, MIN_SHARED_MEMORY)
    stages = tile.stages
    while stages > 1 and tile.rows * row + 2 * stages * tile.keys * row > limit:
        stages -= 1
    return Tile(tile.rows, tile.keys, tile.warps, stages)


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Tile of :func:`llmk_triton.latent.query.latent_query_kernel`: ``rows`` tokens by ``columns`` of the latent
    vector."""

    rows: int
    columns: int
    warps: int


def latent_rows(target: GPUTarget, *, fp8: bool) -> int:
    """Most rows of a tile of latent attention, ``fp8`` whether the cache is. Its result is as wide as the latent vector
    for each row, so that more don't fit in registers."""
    return 64 if target.backend == "cuda" and target.arch == 90 and not fp8 else 32


def latent_query_tile(tokens: int) -> QueryTile:
    """The tile for a step of ``tokens``. For few, the weight is divided among many programs."""
    return QueryTile(16, 64, 4) if tokens <= 64 else QueryTile(64, 128, 4)


def latent_prefill_tile(target: GPUTarget, row: int, *, fp8: bool) -> Tile:
    """The tile for requests with many queries, over latent rows of ``row`` bytes."""
    rows = latent_rows(target, fp8=fp8)
    if target.backend == "hip":
        return Tile(rows, 16, 8, 1)
    return _fit_latent(target, row, Tile(rows, 32, 8, 3 if rows == 64 else 2))


def latent_decode_configs(target: GPUTarget, row: int, group: int) -> tuple[DecodeConfig, DecodeConfig]:
    """The configurations of the decode kernel over latent rows of ``row`` bytes, for small and for large batches,
    ``group`` heads per program."""
    rows = max(16, triton.next_power_of_2(group))
    if target.backend == "hip":
        tile = Tile(rows, 16, 4, 2 if rows == 16 else 1)
    else:
        stages = 3 if rows == 16 or target.arch == 90 else 2
        tile = _fit_latent(target, row, Tile(rows, 32, 4 if rows == 16 else 8, stages))
    programs = 2 if rows == 16 else 1
    return DecodeConfig(tile, programs, 64), DecodeConfig(tile, programs, 256)


@dataclass(frozen=True, slots=True)
class ExpansionTile:
    """Tile of :func:`llmk_triton.latent.expand.expand_kernel`: ``rows`` of the cache, by all of a head's key and value,
    ``columns`` of the latent vector at a time."""

    rows: int
    columns: int
    warps: int
    stages: int


def expansion_tile(target: GPUTarget) -> ExpansionTile:
    """The tile of latent rows that are projected to keys and values."""
    if SHARED_MEMORY.get(target.arch, MIN_SHARED_MEMORY) >= 200 << 10:
        return ExpansionTile(128, 64, 8, 3)
    return ExpansionTile(64, 32, 8, 2 if target.backend == "hip" else 3)


def expanded_tile(target: GPUTarget, itemsize: int) -> Tile:
    """The tile of prompts over projected keys and values, with heads as wide as in DeepSeek-V2: keys of 192 elements,
    values of 128."""
    if target.backend == "hip" or itemsize == 4:
        return Tile(64, 16 if itemsize == 4 else 32, 4, 1)
    shared = SHARED_MEMORY.get(target.arch, MIN_SHARED_MEMORY)
    return Tile(128, 64 if shared >= 99 << 10 else 32, 8, 3 if shared >= 200 << 10 else 2)


def _fit_latent(target: GPUTarget, row: int, tile: Tile) -> Tile:
    """``tile`` with as many stages, or then as many keys, as fit in shared memory next to the queries. ``row`` is the
    bytes of one latent row, which is loaded once for keys and values."""
    limit = SHARED_MEMORY.get(target.arch, MIN_SHARED_MEMORY)
    keys, stages = tile.keys, tile.stages
    while stages > 1 and (tile.rows + stages * keys) * row > limit:
        stages -= 1
    while keys > 16 and (tile.rows + stages * keys) * row > limit:
        keys //= 2
    return Tile(tile.rows, keys, tile.warps, stages)

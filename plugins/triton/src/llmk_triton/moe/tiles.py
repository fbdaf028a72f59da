"""Tile sizes of the MoE kernels, by target device and rows per expert.

Tuned ones are in ``configs/moe.<architecture>.json`` (:mod:`llmk_triton.common.tuned`): the shape is
``<experts>x<top_k>x<hidden>x<inner>``, rows are the step's tokens, and a configuration has the fields of :class:`Tiles`
by the names ``rows``, ``gate_up_features``, ``gate_up_columns``, …, ``down_stages``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache

import torch
import triton
from triton.backends.compiler import GPUTarget

from llmk_triton.common.targets import MIN_SHARED_MEMORY, SHARED_MEMORY, has_wave32
from llmk_triton.common.tuned import Config, tuned

_ROWS = ((8, 16), (16, 32), (48, 64))
"""(most rows per expert on average, rows per block); beyond the last, 128 rows per block."""
_MOST_AT_ONCE = 32
"""Most experts of a token whose outputs one program sums, each from a part of its registers: with 64, the compiler
takes 43 seconds, with 128 minutes."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A program computes ``features`` outputs from ``columns`` inputs per iteration; ``warps`` and ``stages`` are
    Triton's."""

    features: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """``rows`` tokens of one expert share a program; 0: none do, and the kernels for few tokens are used."""

    rows: int
    gate_up: Tile
    down: Tile

    @classmethod
    def of(cls, config: Config) -> Tiles:
        """The tiles of a tuned configuration."""
        names = Tile.__dataclass_fields__
        gate_up, down = (Tile(**{name: config[f"{part}_{name}"] for name in names}) for part in ("gate_up", "down"))
        return cls(config["rows"], gate_up, down)

    def config(self) -> Config:
        """The tuned configuration with these tiles."""
        parts = (("gate_up", self.gate_up), ("down", self.down))
        tiles = {f"{part}_{name}": value for part, tile in parts for name, value in asdict(tile).items()}
        return {"rows": self.rows, **tiles}


@cache
def choose_tiles(
    target: GPUTarget,
    dtype: str,
    num_tokens: int,
    num_experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    *,
    scaled: bool = False,
) -> Tiles:
    """Tiles for a step of ``num_tokens`` in ``dtype``. Weights that are ``scaled`` are multiplied by tensor cores,
    however few tokens there are."""
    found = None if scaled else tuned("moe", target, dtype, f"{num_experts}x{top_k}x{hidden}x{inner}", num_tokens)
    if found:
        return Tiles.of(found)
    itemsize = getattr(torch, dtype).itemsize
    pairs = num_tokens * top_k
    few = num_tokens == 1 or 4 * pairs <= num_experts
    if few and top_k <= _MOST_AT_ONCE and not scaled:
        return _few(target, itemsize, triton.next_power_of_2(top_k), hidden, inner)
    each = pairs / num_experts
    rows = next((rows for most, rows in _ROWS if each <= most), 128)
    if has_wave32(target):
        narrow = Tile(32, 32, 4, 1)
        return Tiles(min(rows, 32), narrow, narrow)
    if itemsize == 4:
        narrow = Tile(64 if rows <= 32 else 32, 32, 4, 2)
        return Tiles(min(rows, 64), _fit(target, itemsize, rows, 2, narrow), _fit(target, itemsize, rows, 1, narrow))
    if target.backend == "xpu":
        rows = min(rows, 64)
        gate_up, down = Tile(32, 64, 4 if rows <= 32 else 8, 2), Tile(64, 64, 4 if rows <= 32 else 8, 2)
    elif rows <= 64 and target.backend == "cuda":
        gate_up, down = Tile(64, 128, 4, 4 if rows <= 32 else 3), _down(rows, inner)
    elif rows <= 64:
        gate_up, down = Tile(64, 128, 4, 3), Tile(64, 128, 4, 4)
    elif target.backend == "cuda" and target.arch < 90:
        gate_up, down = Tile(64, 64, 8, 3), Tile(128, 64, 8, 3)
    else:
        gate_up, down = Tile(128, 64, 8, 4), Tile(256, 64, 8, 4)
    return Tiles(rows, _fit(target, itemsize, rows, 2, gate_up), _fit(target, itemsize, rows, 1, down))


def _few(target: GPUTarget, itemsize: int, slots: int, hidden: int, inner: int) -> Tiles:
    # Each warp has rows of its own, of which a thread loads 16 bytes at once.
    columns = 32 * 16 // itemsize
    features = 2 if has_wave32(target) else 4
    gate_up = Tile(features, min(columns, triton.next_power_of_2(hidden)), 4, 8)
    down = Tile(max(1, 4 * features // slots), min(columns, triton.next_power_of_2(inner)), 4, 4)
    if target.backend == "cuda" and inner <= 2 * columns:
        down = replace(down, features=max(4, down.features), warps=8)
    return Tiles(0, gate_up, down)


def _down(rows: int, inner: int) -> Tile:
    """The second GEMM of blocks of up to 64 rows. Of experts with few inputs a program ends soon, so it takes the more
    outputs, the longer it waits for its rows."""
    if rows <= 32:
        return Tile(64, 128, 4, 4) if rows == 16 and inner > 2048 else Tile(128, 128, 8, 3)
    return Tile(64, 128, 4, 4) if inner > 4096 else Tile(256, 64, 8, 3)


def _fit(target: GPUTarget, itemsize: int, rows: int, matrices: int, tile: Tile) -> Tile:
    """``tile`` with as many stages as fit in shared memory, and with fewer columns if not even two fit."""
    limit = SHARED_MEMORY.get(target.arch, MIN_SHARED_MEMORY)
    if target.backend == "hip":
        tile = replace(tile, stages=min(tile.stages, 2))
    while tile.stages * (matrices * tile.features + rows) * tile.columns * itemsize > limit:
        smaller = {"stages": tile.stages - 1} if tile.stages > 2 else {"columns": tile.columns // 2}
        tile = replace(tile, **smaller)
    return tile

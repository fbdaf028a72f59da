"""4-bit weights with a scale per group of inputs: products of few rows beside torch's with bfloat16 weights, those of
many with the weight widened first; and over configurations."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_cases.gemm import ROTATED_BYTES, TOLERANCE
from kernel_cases.harness import Bench, Case, Named, relative_error
from llmk.reference.linear import linear_dequantized
from llmk.reference.quantize import quantize_int4_group
from llmk.reference.quantized_weight import prepare_int4_group
from llmk_triton.common.targets import current_target, num_multiprocessors
from llmk_triton.common.tuned import architecture
from llmk_triton.gemm import int4
from llmk_triton.gemm.int4 import Int4Config, TiledInt4

SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (4096, 14336), (28672, 4096), (5120, 17408))
"""Outputs and inputs of 8B models, and of a 14B one's down projection, whose inputs are no power of two."""
ROWS = (1, 4, 16, 32, 64, 128, 256)
SWEPT_ROWS = (1, 16, 32, 64)
MANY_ROWS = (256, 512, 2048)
GROUPS = ((128, False), (128, True), (64, False), (32, False), (-1, False))
SWEPT = ((64, 4, 3), (64, 4, 4), (64, 4, 6), (64, 4, 8), (128, 4, 4), (128, 8, 4), (128, 8, 6), (64, 8, 4))
"""``block_n``, warps, stages."""
SWEPT_WAVES = (1, 2, 3, 4, 6, 8)
"""Programs per multiprocessor that splitting aims at."""


class Site:
    """A product with enough weights to rotate."""

    def __init__(self, rows: int, out: int, size: int, group: int, device: torch.device, *, zero: bool) -> None:
        self.rows, self.out, self.size = rows, out, size
        self.x = torch.randn(rows, size, device=device).bfloat16()
        plain = torch.empty(out, size, device=device).normal_(std=size**-0.5)
        parts = quantize_int4_group(plain, size if group < 0 else group, symmetric=not zero)
        parts["weight_scale"] = parts["weight_scale"].bfloat16()
        self.exact = prepare_int4_group(parts)
        first = int4.prepare(parts)
        assert isinstance(first, TiledInt4)
        self.bytes = sum(each.nbytes for each in (first.words, first.scale, first.zero) if each is not None)
        sets = max(1, min(64, ROTATED_BYTES // self.bytes))
        self.weights = [first] + [int4.prepare(parts) for _ in range(sets - 1)]

    def case(self, run: Callable[[Tensor, TiledInt4, None], Tensor]) -> Case:
        """The product by ``run``."""
        moved = self.bytes + 2 * self.rows * (self.size + self.out)
        weights, x = self.weights, self.x
        return Case(
            lambda i: run(x, weights[i], None),  # type: ignore[arg-type]
            lambda: linear_dequantized(x, self.exact, None),
            moved,
            2 * self.rows * self.out * self.size,
            len(weights),
            TOLERANCE,
        )


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """As few rows are multiplied, and as many are."""
    shapes, groups = (((136, 320),), ((32, True),)) if tiny else (SHAPES, GROUPS)
    for (out, size), (group, zero), rows in product(shapes, groups, (1, 3) if tiny else ROWS):
        if rows > 1 and group not in (32, 128):
            continue
        name = f"int4 {out}x{size} by {group}{' zero' if zero else ''} x{rows}"
        yield name, partial(_case, rows, out, size, group, device, zero, int4.linear)
    for (out, size), rows in product(shapes, (3,) if tiny else MANY_ROWS):
        how = (out, size, 64 if tiny else 128, device, False)
        yield f"int4 many {out}x{size} x{rows}", partial(_case, rows, *how, int4.linear_many)
        yield f"int4 by_torch {out}x{size} x{rows}", partial(_plain, rows, out, size, device)


def _case(
    rows: int, out: int, size: int, group: int, device: torch.device, zero: bool, run: Callable[..., Tensor]
) -> Case:
    return Site(rows, out, size, group, device, zero=zero).case(run)


def _plain(rows: int, out: int, size: int, device: torch.device) -> Case:
    """torch's product of as many bfloat16 numbers."""
    x, weight = torch.randn(rows, size, device=device).bfloat16(), torch.randn(out, size, device=device).bfloat16()
    moved = 2 * (out * size + rows * (out + size))
    return Case(lambda i: F.linear(x, weight), lambda: F.linear(x, weight), moved, 2 * rows * out * size)


def sweep(bench: Bench, only: re.Pattern[str], folder: Path) -> None:
    """Times configurations of each shape and number of rows; prints the best, and writes those that are faster than the
    one by rule to ``folder``."""
    cores = num_multiprocessors(bench.device)
    for (out, size), rows in product(SHAPES, SWEPT_ROWS):
        name = f"int4 {out}x{size} x{rows}"
        if not only.search(name) or time.monotonic() - bench.started > bench.seconds:
            continue
        site = Site(rows, out, size, 128, bench.device, zero=False)
        chosen = int4.choose(current_target(), torch.bfloat16, rows, out, size, cores)
        tried = dict.fromkeys([chosen, *_swept(out, size, rows, cores)])
        timed = [(seconds, config) for config in tried if (seconds := _timed(bench, site, config))]
        by_rule = next((seconds for seconds, config in timed if config == chosen), float("inf"))
        timed.sort(key=lambda one: one[0])
        for place, (seconds, config) in enumerate(timed[:3]):
            share = site.bytes / seconds / bench.copy_rate
            print(
                f"{'' if place else name:<40}{1e6 * seconds:8.2f} us {share:6.1%} of the copy's rate,"
                f" {seconds / by_rule:5.2f}x of {asdict(chosen)} {tuple(asdict(config).values())}",
                flush=True,
            )
        if timed and timed[0][1] != chosen:
            _save(out, size, rows, timed[0][1], folder)


def _swept(out: int, size: int, rows: int, cores: int) -> Iterator[Int4Config]:
    for (block_n, warps, stages), waves in product(SWEPT, SWEPT_WAVES):
        tiles = -(-out // block_n) * -(-rows // 64)
        yield Int4Config(block_n, max(1, min(waves * cores // tiles, size // 256, 32)), warps, stages)


def _timed(bench: Bench, site: Site, config: Int4Config) -> float:
    """Seconds of a call; 0 where it can't be launched, or is wrong."""
    try:
        found = int4.launch(site.x, site.weights[0], None, config)  # type: ignore[arg-type]
        if relative_error(found, linear_dequantized(site.x, site.exact, None)) > TOLERANCE:
            print(f"    {config} is wrong")
            return 0.0
        return bench.time(lambda i: int4.launch(site.x, site.weights[i], None, config), len(site.weights))  # type: ignore[arg-type]
    except Exception as error:  # Triton has many for what doesn't fit; one must not end the sweep.
        print(f"    {config}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
        return 0.0


def _save(out: int, size: int, rows: int, config: Int4Config, folder: Path) -> None:
    path = folder / f"linear_int4.{architecture(current_target())}.json"
    table = json.loads(path.read_text()) if path.is_file() else {}
    table.setdefault("bfloat16", {}).setdefault(f"{out}x{size}", {})[str(rows)] = asdict(config)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=1) + "\n")

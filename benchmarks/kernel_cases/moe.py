"""Mixtures of experts: the whole of it, and its launches over tile sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from kernel_cases.harness import SHAPES, TINY, Bench, Case, Named, Shape, relative_error
from llmk.reference.moe import fused_moe as reference
from llmk_triton.common.targets import current_target
from llmk_triton.common.tuned import architecture
from llmk_triton.moe import library
from llmk_triton.moe.fused import ExpertRows, FusedMoE
from llmk_triton.moe.tiles import Tile, Tiles

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 2048, 8192)
SWEPT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
SETS = 6
"""Inputs that take other experts: what few tokens leave in the device's cache is not what the next ones read."""
TOLERANCE = 8e-3

_SWEPT = (
    SHAPES[2],
    *(replace(SHAPES[2], name=f"30B-A3B/{ranks}", inner=SHAPES[2].inner // ranks) for ranks in (2, 4)),
    replace(SHAPES[2], name="Qwen3-Next", inner=512, experts=512, top_k=10),
)
"""Whole, and what each of several ranks has of it; many small experts."""

_LARGE = (
    replace(SHAPES[2], name="Mixtral", hidden=4096, inner=14336, experts=8, top_k=2),
    replace(SHAPES[2], name="OLMoE", hidden=2048, inner=1024, experts=64, top_k=8),
    SHAPES[2],
)
"""Experts that many tokens share, for comparing the grouped GEMM of this package and the library's."""

_UNTUNED = (
    _LARGE[1],
    replace(SHAPES[2], name="Granite 4 Tiny", hidden=1536, inner=512, experts=64, top_k=6),
    replace(SHAPES[2], name="GPT-OSS 20B", hidden=2880, inner=2880, experts=32, top_k=4),
    replace(SHAPES[2], name="GLM-4.5 Air", hidden=4096, inner=1408, experts=128, top_k=8),
)
"""Experts whose tiles are chosen by rule."""

_EACH = (4, 12, 30)
"""Rows per expert on average: each of them is for blocks of another size."""

_SWEPT_ROWS = (16, 32, 64, 128, 256)
_MOST_FEW = 16
"""Tokens up to which the kernels for few are tried."""

_FEW_GATE_UP = (
    *((4, 256, 4, 8), (4, 256, 4, 4), (8, 256, 4, 4), (8, 256, 8, 8), (8, 256, 8, 4), (16, 256, 8, 4)),
    *((2, 256, 2, 8), (4, 256, 2, 4), (1, 256, 1, 8), (2, 256, 1, 4)),
)
_FEW_DOWN = (
    *((2, 256, 4, 4), (4, 256, 4, 4), (1, 256, 4, 4), (1, 256, 2, 4), (1, 256, 1, 4), (2, 256, 2, 4)),
    *((4, 256, 8, 4), (8, 256, 8, 4), (2, 256, 4, 2), (4, 256, 4, 2), (4, 256, 4, 1), (8, 256, 8, 2)),
)
"""Features, columns, warps, stages."""

_NARROW = (
    *((64, 64, 4, 3), (64, 64, 4, 4), (64, 64, 4, 6), (64, 128, 4, 2), (64, 128, 4, 3), (64, 128, 4, 4)),
    *((64, 256, 4, 2), (64, 256, 4, 3), (32, 128, 4, 4), (32, 256, 4, 3)),
    *((128, 64, 4, 3), (128, 64, 4, 4), (128, 64, 8, 4), (128, 128, 8, 3)),
)
_WIDE = (
    *((64, 64, 4, 3), (64, 64, 4, 4), (64, 64, 8, 4), (64, 128, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3)),
    *((128, 64, 8, 4), (128, 32, 8, 4), (128, 128, 8, 2), (256, 64, 8, 3), (256, 64, 8, 4)),
)
"""Features, columns, warps, stages: for blocks of up to 32 rows, and for larger."""


@dataclass(slots=True)
class Inputs:
    """Experts of one layer, and rows that take them at random: ``x``, and logits without ties."""

    shape: Shape
    weights: dict[str, Tensor]
    rows: list[tuple[Tensor, Tensor]]

    @classmethod
    def random(
        cls, shape: Shape, tokens: int, device: torch.device, weights: dict[str, Tensor] | None = None
    ) -> Inputs:
        """``SETS`` sets of ``tokens`` rows."""
        experts, hidden, inner = shape.experts, shape.hidden, shape.inner
        if weights is None:
            weights = {
                "gate_up": torch.empty(experts, 2 * inner, hidden, dtype=shape.dtype, device=device),
                "down": torch.empty(experts, hidden, inner, dtype=shape.dtype, device=device),
            }
            for weight in weights.values():
                weight.normal_(std=weight.shape[-1] ** -0.5)
        rows = []
        for _ in range(SETS):
            x = torch.randn(tokens, hidden, device=device).to(shape.dtype)
            order = torch.rand(tokens, experts, device=device).argsort(dim=1)
            rows.append((x, (order / 16).to(shape.dtype)))
        return cls(shape, weights, rows)

    def run(self, i: int, tiles: Tiles | None = None) -> Tensor:
        """One set, by tiles of one's choice or as it ships."""
        mixture = self.mixture(i)
        return mixture.run(tiles or mixture.tiles())

    def expected(self) -> Tensor:
        """The reference on the first set."""
        x, logits = self.rows[0]
        return reference(x, logits, self.weights, top_k=self.shape.top_k, renormalize=True)

    def mixture(self, i: int) -> FusedMoE:
        """One set, to be launched one by one."""
        x, logits = self.rows[i]
        return FusedMoE(x, logits, self.weights, self.shape.top_k, True)

    def bytes(self) -> int:
        """What one set moves at least, on average: the experts that its rows take, rows in and out."""
        taken = [logits.topk(self.shape.top_k).indices.unique().numel() for _, logits in self.rows]
        each = sum(weight[0].nbytes for weight in self.weights.values())
        return round(sum(taken) / SETS * each) + 2 * self.rows[0][0].nbytes

    def flops(self) -> int:
        """What one set computes."""
        return 6 * self.rows[0][0].shape[0] * self.shape.top_k * self.shape.hidden * self.shape.inner


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """All batches of the sparse model."""
    shape = _shape(tiny)
    for tokens in (1, 9) if tiny else TOKENS:
        yield f"moe {shape.name} x{tokens}", partial(_case, shape, tokens, device)
    for each, part in product(_EACH, ("gate_up", "down")):
        for one in (shape,) if tiny else _UNTUNED:
            tokens = each * one.experts // one.top_k
            yield f"moe {part} {one.name} x{tokens}", partial(_launch, part, one, tokens, device)
    if not tiny:
        for tokens in (1, 2, 64):
            yield f"moe {shape.name} x{tokens} one after the other", partial(_overlapped, shape, tokens, device)
        for shape, tokens in product(_LARGE, (2048, 8192)):
            yield f"moe grouped {shape.name} x{tokens}", partial(_case, shape, tokens, device)
            yield f"moe library {shape.name} x{tokens}", partial(_library, shape, tokens, device)


def sweep(bench: Bench, only: re.Pattern[str], folder: Path) -> None:
    """Times tiles for every shape and number of tokens whose name has ``only``, launch by launch; prints the best, and
    writes them to ``folder`` as tuned configurations, beside those that it has already."""
    for shape in _SWEPT:
        _sweep(bench, shape, only, folder)


def _sweep(bench: Bench, shape: Shape, only: re.Pattern[str], folder: Path) -> None:
    weights = None
    for tokens in SWEPT_TOKENS:
        name = f"moe {shape.name} x{tokens}"
        if not only.search(name):
            continue
        inputs = Inputs.random(shape, tokens, bench.device, weights)
        weights = inputs.weights
        found = [(bench.time(partial(inputs.run, tiles=tiles), SETS), tiles) for tiles in _candidates(bench, inputs)]
        best, tiles = min(found, key=lambda one: one[0])
        default = bench.time(inputs.run, SETS)
        by_rows = ", ".join(f"{tiles.rows} rows {1e6 * seconds:.1f}" for seconds, tiles in found)
        floor = max(inputs.bytes() / bench.copy_rate, inputs.flops() / bench.flop_rate)
        print(f"{name:<24}{1e6 * best:9.2f} us {floor / best:5.0%} (chosen {1e6 * default:.2f}; {by_rows}) {tiles}")
        _save(shape, tokens, tiles, folder)


def _candidates(bench: Bench, inputs: Inputs) -> Iterator[Tiles]:
    """For each number of rows that a block may have, the tiles whose launches were the fastest."""
    mixtures = [inputs.mixture(i) for i in range(SETS)]
    tokens, each = inputs.rows[0][0].shape[0], inputs.rows[0][0].shape[0] * inputs.shape.top_k / inputs.shape.experts
    if tokens <= _MOST_FEW:
        chosen = [mixture.select(1) for mixture in mixtures]
        h = [mixture.gate_up_few(each, Tile(4, 256, 4, 8)) for mixture, each in zip(mixtures, chosen, strict=True)]
        gate_ups, downs = ([Tile(*t) for t in swept] for swept in (_FEW_GATE_UP, _FEW_DOWN))
        gate_up = _fastest(bench, lambda i, tile: mixtures[i].gate_up_few(chosen[i], tile), gate_ups)
        down = _fastest(bench, lambda i, tile: mixtures[i].down_few(chosen[i], h[i], tile), downs)
        yield Tiles(0, gate_up, down)
    routed = [mixture.route() for mixture in mixtures]
    for size in _SWEPT_ROWS:
        if each > 4 * size or (size > 16 and each < size / 8):
            continue
        swept = [Tile(*t) for t in (_NARROW if size <= 32 else _WIDE)]
        h = [mixture.gate_up(rows, size, swept[0]) for mixture, rows in zip(mixtures, routed, strict=True)]
        run_up = partial(_gate_up, mixtures, routed, size)
        gate_up = _fastest(bench, run_up, swept)
        run_down = partial(_down, mixtures, routed, h, size)
        yield Tiles(size, gate_up, _fastest(bench, run_down, swept))


def _gate_up(mixtures: list[FusedMoE], routed: list[ExpertRows], size: int, i: int, tile: Tile) -> Tensor:
    return mixtures[i].gate_up(routed[i], size, tile)


def _down(mixtures: list[FusedMoE], routed: list[ExpertRows], h: list[Tensor], size: int, i: int, tile: Tile) -> Tensor:
    return mixtures[i].down(routed[i], h[i], size, tile)


def _fastest(bench: Bench, run: Callable[[int, Tile], Tensor], tiles: list[Tile]) -> Tile:
    """The fastest of those that fit and give what the first one does, which is known to."""
    expected = run(0, tiles[0])

    def able(tile: Tile) -> bool:
        try:
            return relative_error(run(0, tile), expected) <= TOLERANCE
        except Exception as error:  # Triton has many for what doesn't fit; one must not end the sweep.
            print(f"    {tile}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            return False

    with ThreadPoolExecutor() as pool:
        fitting = [tile for tile, fits in zip(tiles, pool.map(able, tiles), strict=True) if fits]
    return min(fitting, key=lambda tile: bench.time(lambda i: run(i, tile), SETS))


def _save(shape: Shape, tokens: int, tiles: Tiles, folder: Path) -> None:
    path = folder / f"moe.{architecture(current_target())}.json"
    table = json.loads(path.read_text()) if path.is_file() else {}
    by_shape = table.setdefault(str(shape.dtype).removeprefix("torch."), {})
    by_rows = by_shape.setdefault(f"{shape.experts}x{shape.top_k}x{shape.hidden}x{shape.inner}", {})
    by_rows[str(tokens)] = tiles.config()
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=1) + "\n")


def _shape(tiny: bool) -> Shape:
    return replace(TINY[0], experts=8, top_k=2) if tiny else SHAPES[2]


def _case(shape: Shape, tokens: int, device: torch.device) -> Case:
    inputs = Inputs.random(shape, tokens, device)
    return Case(inputs.run, inputs.expected, inputs.bytes(), inputs.flops(), SETS)


def _launch(part: str, shape: Shape, tokens: int, device: torch.device) -> Case:
    """One of the GEMMs by the tiles that ship, compared with small ones."""
    inputs = Inputs.random(shape, tokens, device)
    mixtures = [inputs.mixture(i) for i in range(SETS)]
    routed, tiles, plain = [mixture.route() for mixture in mixtures], mixtures[0].tiles(), Tile(*_NARROW[0])
    run, tile, share = partial(_gate_up, mixtures, routed, tiles.rows), tiles.gate_up, 2 / 3
    if part == "down":
        h = [run(i, plain) for i in range(SETS)]
        run, tile, share = partial(_down, mixtures, routed, h, tiles.rows), tiles.down, 1 / 3
    sizes = round(share * inputs.bytes()), round(share * inputs.flops())
    return Case(lambda i: run(i, tile), lambda: run(0, plain), *sizes, SETS)


def _library(shape: Shape, tokens: int, device: torch.device) -> Case:
    inputs = Inputs.random(shape, tokens, device)

    def run(i: int) -> Tensor:
        return library.fused_moe(*inputs.rows[i], inputs.weights, top_k=shape.top_k, renormalize=True)

    return Case(run, inputs.expected, inputs.bytes(), inputs.flops(), SETS)


def _overlapped(shape: Shape, tokens: int, device: torch.device) -> Case:
    """Calls that start while others run, in a graph, give what each gives when it is alone."""
    inputs, module = Inputs.random(shape, tokens, device), torch.get_device_module(device)
    alone = []
    for i in range(SETS):
        alone.append(inputs.run(i))
        module.synchronize()
    graph = module.CUDAGraph()
    with module.graph(graph):
        together = [inputs.run(i % SETS) for i in range(8 * SETS)]

    def run(i: int) -> Tensor:
        if not module.is_current_stream_capturing():
            graph.replay()
        return torch.stack(together)

    return Case(run, lambda: torch.stack(alone * 8), 0, tolerance=0)

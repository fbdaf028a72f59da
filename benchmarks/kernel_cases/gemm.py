"""Products of few rows: alone, after a norm and before SwiGLU, beside torch's; and over configurations."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime._async_compile import active_mode

from kernel_cases.harness import SHAPES, TINY, Bench, Case, Named, Shape, relative_error
from llmk.reference import activations, norms
from llmk.reference.norm_linear import make_add_rms_norm_gate_up_silu, make_add_rms_norm_linear
from llmk_cuda.forks import Forks
from llmk_triton.common import activations as triton_activations
from llmk_triton.common import norms as triton_norms
from llmk_triton.common.targets import current_target, num_multiprocessors
from llmk_triton.common.tuned import architecture
from llmk_triton.gemm import small_m
from llmk_triton.gemm.problem import GemmProblem, Operands
from llmk_triton.gemm.small_m import Gemv, Skinny

ROWS = (1, 2, 4, 16, 24, 32, 64, 96, 128)
SWEPT_ROWS = (1, 2, 4, 16, 32, 64, 128)
NORMED_ROWS = (1, 2, 4, 16)
ROTATED_BYTES = 192 << 20
"""What the sets of a case hold together at least: more than a cache of the device does."""
EPS = 1e-6
TOLERANCE = 8e-3

SWEPT_SKINNY = {
    16: (
        *((64, 128, 1, 4, 3), (64, 128, 1, 4, 5), (64, 256, 1, 4, 3), (128, 64, 1, 4, 5)),
        *((16, 256, 0, 4, 4), (32, 128, 0, 4, 4), (32, 256, 0, 4, 3)),
        *((128, 64, 1, 4, 6, 1), (256, 64, 1, 8, 5, 1)),
    ),
    32: (
        *((64, 64, 1, 4, 8, 1), (64, 128, 1, 4, 4, 1), (128, 64, 1, 4, 5, 1), (128, 64, 1, 4, 10, 1)),
        *((128, 128, 1, 4, 5, 1), (256, 64, 1, 8, 3, 1), (256, 64, 1, 8, 6, 1)),
        *((64, 128, 1, 4, 3), (128, 64, 1, 4, 4), (32, 128, 0, 4, 4), (16, 128, 0, 4, 3), (16, 256, 0, 4, 2)),
    ),
    64: (
        *((64, 64, 1, 4, 6, 1), (64, 128, 1, 4, 3, 1), (128, 64, 1, 4, 4, 1), (128, 64, 1, 4, 8, 1)),
        *((128, 64, 0, 4, 4, 1), (128, 64, 1, 8, 4, 1), (128, 128, 1, 4, 4, 1), (256, 64, 1, 8, 5, 1)),
        *((256, 64, 0, 8, 5, 1), (128, 64, 1, 4, 4), (128, 64, 1, 8, 4), (16, 128, 0, 4, 3), (16, 256, 0, 4, 2)),
    ),
    128: (
        *((64, 64, 1, 4, 4, 1), (128, 64, 0, 8, 3, 1), (128, 64, 1, 8, 3, 1), (128, 64, 1, 8, 6, 1)),
        *((128, 128, 1, 8, 3, 1), (256, 64, 0, 8, 4, 1), (256, 64, 1, 8, 4, 1)),
        *((64, 64, 0, 4, 4), (128, 64, 0, 8, 4), (16, 128, 0, 4, 3), (16, 256, 0, 4, 2)),
    ),
}
"""By rows of a tile: ``block_n`` (with ``bulk``, of both halves of a gated weight together), ``block_k``, ``swap``,
warps, stages, ``bulk``."""
SWEPT_WAVES = (1, 2, 3)
"""Programs per multiprocessor that splitting aims at."""
COMPILING = 30.0
"""Seconds that a kernel has to be compiled in: some have an assembler never end."""


@dataclass(slots=True)
class Site:
    """A product, the op ``kernel``, with enough weights to rotate once it is filled."""

    kernel: str
    rows: int
    size: int
    out: int
    dtype: torch.dtype
    operands: list[Operands] = field(default_factory=list)

    @property
    def problem(self) -> GemmProblem:
        """What is to be launched."""
        return GemmProblem(self.kernel, self.dtype, self.rows, self.size, self.out)

    def fill(self, device: torch.device) -> None:
        """Makes the operands, random."""
        out = self.out * (1 + self.problem.gated)
        x, residual = (torch.randn(self.rows, self.size, device=device).to(self.dtype) for _ in range(2))
        kept = torch.empty_like(x) if self.problem.returns_normed else None
        normed = (residual, torch.randn_like(x[0]), EPS, kept) if self.problem.normed else ()
        for _ in range(max(1, min(48, ROTATED_BYTES // (out * self.size * self.dtype.itemsize)))):
            weight = torch.empty(out, self.size, dtype=self.dtype, device=device).normal_(std=self.size**-0.5)
            self.operands.append(Operands(x, weight, None, *normed))

    def launch(self, config: Gemv | Skinny, i: int) -> tuple[Tensor, Tensor]:
        """The op on set ``i``, launched so."""
        return small_m.launch(self.problem, config, self.operands[i])

    def shipped(self, i: int) -> tuple[Tensor, Tensor]:
        """The op on set ``i``, as it ships."""
        return small_m.run(self.kernel, self.operands[i])

    def apart(self, i: int) -> tuple[Tensor, Tensor]:
        """The norm by one kernel, the rest by another."""
        o = self.operands[i]
        assert o.residual is not None
        assert o.norm_weight is not None
        normed, total = triton_norms.add_rms_norm(o.x, o.residual, o.norm_weight, o.eps)
        product = "gate_up_silu" if self.problem.gated else "linear"
        return small_m.run(product, Operands(normed, o.weight, None))[0], total

    def by_library(self, i: int) -> tuple[Tensor, Tensor]:
        """The product by torch, what stands around it by kernels of its own."""
        o, normed, total = self.operands[i], self.operands[i].x, self.operands[i].x
        if o.residual is not None and o.norm_weight is not None:
            normed, total = triton_norms.add_rms_norm(o.x, o.residual, o.norm_weight, o.eps)
        found = F.linear(normed, o.weight)
        return triton_activations.silu_and_mul(found) if self.problem.gated else found, total

    def by_torch(self, i: int) -> tuple[Tensor, Tensor]:
        """The reference: torch's product, by cuBLAS on NVIDIA's devices."""
        o = self.operands[i]
        if not self.problem.normed:
            return _PARTS[self.kernel](o.x, o.weight, None), o.x
        return _NORMED[self.kernel](o.x, o.residual, o.norm_weight, o.eps, o.weight, None)

    def case(self, device: torch.device, way: str) -> Case:
        """As it ships, or in one of the other ways."""
        self.fill(device)
        weight = self.operands[0].weight
        moved = weight.nbytes + self.rows * (self.size + self.out) * weight.itemsize
        run = getattr(self, way)
        flops = 2 * self.rows * weight.numel()
        # Before the kernel runs: what it reads before it waits, the kernel just before must not have written.
        expected = self.by_torch(0)
        return Case(run, lambda: expected, moved, flops, len(self.operands), TOLERANCE)


Sited = tuple[str, Callable[[], Site]]
"""A site's name, and what makes it."""


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """All sites of all models; products by torch beside those alone, and norm and product apart beside those in one."""
    for name, site in _sites(TINY if tiny else SHAPES, (1, 3) if tiny else ROWS):
        yield name, partial(site().case, device, "shipped")
        other = "apart" if site().problem.normed else "by_torch"
        yield f"{name} {other}", partial(site().case, device, other)


def sweep(bench: Bench, only: re.Pattern[str], folder: Path, sites: Iterable[Sited] | None = None) -> None:
    """Times configurations for each of ``sites`` (those with plain weights) whose name has ``only``; prints each's
    best beside the library's product, and writes those that are faster to ``folder`` as tuned configurations, beside
    what it has already."""
    cores = num_multiprocessors(bench.device)
    found = [(name, make()) for name, make in sites or _sites(SHAPES, SWEPT_ROWS) if only.search(name)]
    tried = []
    for _, site in found:
        site.fill(bench.device)
        chosen = small_m.choose(site.problem, current_target(), cores)
        tried.append(list(dict.fromkeys([chosen, *_swept(site, cores)])))
    compiled = _compiled(
        [(site, config) for (_, site), configs in zip(found, tried, strict=True) for config in configs]
    )
    print(f"compiled after {time.monotonic() - bench.started:.0f} s", flush=True)
    for (name, site), configs in zip(found, tried, strict=True):
        ready = [compiled.popleft() for _ in configs]
        if time.monotonic() - bench.started > bench.seconds:
            print(f"{name:<40}not run: the time is up")
            continue
        _sweep_one(bench, name, site, [config for config, able in zip(configs, ready, strict=True) if able], folder)


def _sweep_one(bench: Bench, name: str, site: Site, configs: list[Gemv | Skinny], folder: Path) -> None:
    expected = site.by_torch(0)
    timed = [
        (bench.time(partial(site.launch, config), len(site.operands)), config)
        for config in configs
        if _error(site, expected, config) <= TOLERANCE
    ]
    library = bench.time(site.by_library, len(site.operands))
    timed.sort(key=lambda one: one[0])
    for place, (seconds, config) in enumerate(timed[:3]):
        rate = site.problem.stored.itemsize * site.out * (1 + site.problem.gated) * site.size / seconds / 1e9
        print(
            f"{'' if place else name:<40}{1e6 * seconds:8.2f} us {rate:6,.0f} GB/s "
            f"{seconds / library:5.2f}x of {1e6 * library:.2f} {tuple(asdict(config).values())}",
            flush=True,
        )
    if not timed:
        print(f"{name:<40}nothing can be launched")
    elif timed[0][0] < library:
        _save(site, timed[0][1], folder)


class _NotedError(Exception):
    """A launch would have to compile its kernel, and ends."""


@dataclass(slots=True)
class _Noting:
    """Stands where Triton's ``AsyncCompileMode`` does: keeps what a launch would compile."""

    compile: Callable[[], Any] = object

    def submit(self, key: str, compile: Callable[[], Any], keep: Callable[[Any], None]) -> Any:
        """Ends the launch."""
        self.compile = compile
        raise _NotedError


def _compiled(wanted: list[tuple[Site, Gemv | Skinny]]) -> deque[bool]:
    """Compiles in processes, to the cache on disk. Whether each could be, in :data:`COMPILING` seconds."""
    forks = Forks(limit=COMPILING)
    with TemporaryDirectory() as folder:
        marks = [Path(folder, str(number)) for number in range(len(wanted))]
        for mark, (site, config) in zip(marks, wanted, strict=True):
            noting = _Noting()
            token = active_mode.set(noting)  # type: ignore[arg-type]
            try:
                site.launch(config, 0)
                mark.touch()
            except _NotedError:
                if mark is marks[0]:
                    noting.compile()  # what the first sets up in the compiler, the others' processes have from here
                forks.submit(partial(_compile, noting.compile, mark))
            except Exception as error:
                print(f"    {site.problem} {config}: {type(error).__name__}: {error}")
            finally:
                active_mode.reset(token)
        forks.join()
        for mark, (site, config) in zip(marks, wanted, strict=True):
            if not mark.exists():
                print(f"    {site.problem.shape} x{site.rows} {config} is not compiled in {COMPILING:.0f} s")
        return deque(mark.exists() for mark in marks)


def _compile(compile: Callable[[], Any], mark: Path) -> None:
    compile()
    mark.touch()


def _error(site: Site, expected: tuple[Tensor, Tensor], config: Gemv | Skinny) -> float:
    """How wrong a configuration is; infinitely so where it takes more than there is."""
    try:
        return relative_error(site.launch(config, 0), expected)
    except Exception as error:  # Triton has many for what doesn't fit; one must not end the sweep.
        print(f"    {config}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
        return float("inf")


def _save(site: Site, config: Gemv | Skinny, folder: Path) -> None:
    path = folder / f"{site.kernel}.{architecture(current_target())}.json"
    table = json.loads(path.read_text()) if path.is_file() else {}
    by_rows = table.setdefault(site.problem.weight_format, {}).setdefault(site.problem.shape, {})
    by_rows[str(site.rows)] = asdict(config)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=1) + "\n")


def _swept(site: Site, cores: int) -> Iterator[Gemv | Skinny]:
    """Configurations to try."""
    shape = site.problem
    row_bytes, gated = shape.size * shape.stored.itemsize, shape.gated
    if shape.rows <= 4:
        for rows, warps, apart in product((1, 2, 4, 8), (2, 4, 8, 16), (0, 1)):
            threads = 32 if apart else 32 * warps
            held = row_bytes * (rows * (1 + gated) + shape.rows - 1) // threads
            if row_bytes >= 16 * threads and held <= 384 and not (apart and rows > 2):
                yield Gemv(rows * warps if apart else rows, warps, apart)
    if shape.rows == 1:
        return
    for tall, block_k, swap, warps, stages, *bulk in SWEPT_SKINNY[max(16, shape.rows)]:
        if (shape.scaled > 1 and block_k > shape.scaled) or (shape.normed and bulk):
            continue
        block_n = tall // (1 + gated) if bulk else tall
        if bulk and swap and block_n < 64:
            continue
        tiles = -(-shape.out // block_n)
        splits = {max(1, min(waves * cores // tiles, shape.size // 128, 16)) for waves in SWEPT_WAVES}
        for split, late in product(sorted(splits), range(1 + len(bulk))):
            yield Skinny(block_n, block_k, split, swap, warps, stages, *(bulk or (0,)), late)


def _sites(shapes: tuple[Shape, ...], all_rows: tuple[int, ...]) -> Iterator[tuple[str, Callable[[], Site]]]:
    """Every product of the models with every number of rows, by name."""
    for shape, rows in product(shapes, all_rows):
        for site, kernel, size, out in model_sites(shape):
            if rows in ((1,) if kernel.endswith("router") else NORMED_ROWS) or not site.startswith("norm"):
                yield f"{site} {shape.name} {out}x{size} x{rows}", partial(Site, kernel, rows, size, out, shape.dtype)


def model_sites(shape: Shape) -> list[tuple[str, str, int, int]]:
    """The products of a model: name, op, and how much they make of how much (``size``, ``out``)."""
    heads = shape.heads * shape.head_dim
    qkv = heads + 2 * shape.kv_heads * shape.head_dim
    sites = [
        ("qkv", "linear", shape.hidden, qkv),
        ("out", "linear", heads, shape.hidden),
        ("head", "linear", shape.hidden, shape.vocab),
        ("norm_qkv", "add_rms_norm_linear", shape.hidden, qkv),
    ]
    if shape.experts:
        sites += [
            ("router", "linear", shape.hidden, shape.experts),
            ("norm_router", "add_rms_norm_router", shape.hidden, shape.experts),
        ]
    else:
        sites += [
            ("down", "linear", shape.inner, shape.hidden),
            ("gate_up", "gate_up_silu", shape.hidden, shape.inner),
            ("norm_gate_up", "add_rms_norm_gate_up_silu", shape.hidden, shape.inner),
        ]
    return sites


_PARTS: dict[str, Callable[..., Any]] = {
    "linear": F.linear,
    "rms_norm": norms.rms_norm,
    "add_rms_norm": norms.make_add_rms_norm({"rms_norm": norms.rms_norm}),
    "silu_and_mul": activations.silu_and_mul,
}
_PARTS["gate_up_silu"] = activations.make_gate_up_silu(_PARTS)
_NORMED = {
    "add_rms_norm_linear": make_add_rms_norm_linear(_PARTS),
    "add_rms_norm_router": make_add_rms_norm_linear(_PARTS),
    "add_rms_norm_gate_up_silu": make_add_rms_norm_gate_up_silu(_PARTS),
}

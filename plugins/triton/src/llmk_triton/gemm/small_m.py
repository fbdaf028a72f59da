"""Products of few rows of activations with a plain weight or one in fp8, alone or with the norm before and the SwiGLU
after them, each one launch: :mod:`llmk_triton.gemm.gemv` for a handful of rows, :mod:`llmk_triton.gemm.skinny` for
more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

from llmk.reference.quantized_weight import FP8_BLOCK, ScaledWeight
from llmk_triton.common import pdl
from llmk_triton.common.targets import (
    LEAST_SHARED,
    SHARED_MEMORY,
    current_target,
    dot_precision,
    num_cores,
    small_waves,
)
from llmk_triton.common.tuned import tuned
from llmk_triton.gemm.gemv import gemv_kernel
from llmk_triton.gemm.skinny import skinny_kernel
from llmk_triton.specs import NARROW

MOST_ROWS = 128
"""Rows up to which one tile has them all."""

_GEMV_ROWS = 4
"""Rows up to which their products one after the other take no longer than reading the weight."""
_LOADED = 16
"""Bytes that a thread loads at a time."""
_HELD = 256
"""Bytes that a thread holds at most, of the weight and of rows of ``x`` but one."""
_NORMED = 64
"""Elements of a row of ``x`` that a thread norms at most: it holds them in float32."""
_PREFETCHED = 1024
"""Lines that a program asks for before it waits: as many as all programs that run at a time may, and fill no cache."""
_LINE = 128
"""Bytes that memory is asked for at a time."""
_LEAST_SPLIT = 256
"""Elements of a row of the weight for which a program more is worth its while."""
_SCALES = {1: "channel", FP8_BLOCK: "block"}
_KEPT = 32 << 20
"""Bytes that a cache still holds while as many are read: of longer products' successors, what they ask for early is
gone again when they start."""
_TALL = 128
"""Rows of the weight in a tile that the bulk copy engine fetches."""
_COUNTERS = 1 << 16
"""Tiles whose rows are split, at most."""


Weight = Tensor | ScaledWeight
"""``[out, size]``: as it is, or in fp8 with a scale per row or per block of 128x128."""


@dataclass(frozen=True, slots=True)
class Gemv:
    """``rows`` of the weight per program of ``warps``, each of which has as many rows of its own where they are
    ``apart``."""

    rows: int
    warps: int
    apart: int

    def threads(self, target: GPUTarget) -> int:
        """How many share a row."""
        return int(target.warp_size) * (1 if self.apart else self.warps)


@dataclass(frozen=True, slots=True)
class Skinny:
    """Tiles of ``block_n`` rows of the weight by ``block_k`` columns, which are split between ``splits`` programs.
    ``swap`` multiplies transposed; ``warps`` and ``stages`` are Triton's; ``bulk`` has tiles come by the bulk copy
    engine, for which rows begin at multiples of 16 bytes; ``late`` has the next kernel start as this one ends."""

    block_n: int
    block_k: int
    splits: int
    swap: int
    warps: int
    stages: int
    bulk: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class Product:
    """What is to be computed, the op ``kernel``: ``[rows, size]`` to ``[rows, out]``."""

    kernel: str
    dtype: torch.dtype
    rows: int
    size: int
    out: int
    scaled: int = 0
    """Rows of an fp8 weight that share a scale: 1, or as many as columns do, in blocks; 0: the weight is plain."""

    @property
    def stored(self) -> torch.dtype:
        """The weight's dtype."""
        return torch.float8_e4m3fn if self.scaled else self.dtype

    @property
    def weight_format(self) -> str:
        """How tuned configurations name what the weight is stored in: plain ones by their dtype."""
        return str(self.dtype).removeprefix("torch.") if not self.scaled else f"fp8_{_SCALES[self.scaled]}"

    @property
    def normed(self) -> bool:
        """Whether a norm comes before it."""
        return self.kernel.startswith("add_rms_norm")

    @property
    def keeps(self) -> bool:
        """Whether what was normed is handed on."""
        return self.kernel.endswith("router")

    @property
    def gated(self) -> bool:
        """Whether SwiGLU comes after it."""
        return self.kernel.endswith("gate_up_silu")

    @property
    def shape(self) -> str:
        """The weight's, as tuned configurations name it."""
        return f"{self.out * (1 + self.gated)}x{self.size}"


@dataclass(frozen=True, slots=True)
class Operands:
    """``x`` ``[..., size]``, the weight and bias of the product, and what its norm takes, if there is one."""

    x: Tensor
    weight: Weight
    bias: Tensor | None
    residual: Tensor | None = None
    norm_weight: Tensor | None = None
    eps: float = 0.0
    kept: Tensor | None = None
    """Contiguous, gets what was normed; of one row."""


def linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """As :func:`llmk.reference.linear.linear`, summed in float32."""
    return run("linear", Operands(x, weight, bias))[0]


def gate_up_silu(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """See :func:`llmk.reference.activations.make_gate_up_silu`; ``weight`` is ``[2 * I, H]``, gate before up."""
    return run("gate_up_silu", Operands(x, weight, bias))[0]


def add_rms_norm_linear(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :func:`llmk.reference.normed.make_add_rms_norm_linear`."""
    return run("add_rms_norm_linear", Operands(x, weight, bias, residual, norm_weight, eps))


def add_rms_norm_gate_up_silu(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :func:`llmk.reference.normed.make_add_rms_norm_gate_up_silu`."""
    return run("add_rms_norm_gate_up_silu", Operands(x, weight, bias, residual, norm_weight, eps))


def add_rms_norm_router(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`llmk.reference.normed.make_add_rms_norm_router`; of one row."""
    normed = x.new_empty(x.shape)
    logits, total = run("add_rms_norm_router", Operands(x, weight, bias, residual, norm_weight, eps, normed))
    return logits, normed, total


def choose(product: Product, target: GPUTarget, cores: int) -> Gemv | Skinny:
    """How to launch it: as was measured, or else by what registers and shared memory hold, and what keeps ``cores``
    multiprocessors' memory busy."""
    found = tuned(product.kernel, target, product.weight_format, product.shape, product.rows)
    if found is not None:
        return Skinny(**found) if "block_n" in found else Gemv(**found)
    gemv = _gemv(product, target) if product.rows <= _GEMV_ROWS else None
    return gemv or _skinny(product, target, cores)


def _gemv(product: Product, target: GPUTarget) -> Gemv | None:
    """A row per warp where one holds it; else as few warps as hold two rows, or one. None where none do."""
    lanes = target.warp_size
    x_bytes, row_bytes = product.size * product.dtype.itemsize, product.size * product.stored.itemsize

    def holds(rows: int, threads: int) -> bool:
        held = row_bytes * rows * (1 + product.gated) + x_bytes * product.rows - row_bytes
        normed = product.size if product.normed else 0
        return held <= _HELD * threads and normed <= _NORMED * threads

    if holds(1, lanes):
        return Gemv(rows=4, warps=4, apart=1)
    for rows in (2, 1):
        for warps in (4, 8, 16):
            if warps * lanes <= 1024 and holds(rows, warps * lanes):
                return Gemv(rows, warps, apart=0)
    return None


def _skinny(product: Product, target: GPUTarget, cores: int) -> Skinny:
    block_m = _block_m(product.rows)
    narrow = target.backend == "cuda" and 16 < block_m <= 64 and product.out <= NARROW and not product.gated
    if block_m > 16 and not narrow and _bulk(product, target):
        return _streamed(product, block_m, cores)
    swap = target.backend == "cuda" and 90 <= target.arch < 120 and product.dtype.itemsize == 2 and block_m <= 64
    block_n, block_k, warps, stages = 64, 64, 4, 4
    if product.dtype.itemsize == 4 or small_waves(target):
        block_n, block_k, stages = 32, 32, 1
    elif narrow:
        # Their reading takes no time: what counts is when the last of many programs is done.
        swap, block_n, (block_k, stages) = False, 16, (256, 2) if product.size <= 2048 else (128, 3)
    elif target.backend == "hip":
        stages = 2
    elif swap or block_m == 16:
        block_n, block_k, stages = 64 if swap else 32, 128, 3
    if block_m == MOST_ROWS and product.gated:
        warps = 8
    limit = SHARED_MEMORY.get(target.arch, LEAST_SHARED)
    column = block_m * product.dtype.itemsize + block_n * (1 + product.gated) * product.stored.itemsize
    while stages > 1 and stages * column * block_k > limit:
        stages -= 1
    tiles = triton.cdiv(product.out, block_n) * triton.cdiv(product.rows, block_m)
    splits = max(1, min(2 * cores // tiles, product.size // _LEAST_SPLIT, 8))
    return Skinny(block_n, block_k, splits, int(swap), warps, stages)


def _bulk(product: Product, target: GPUTarget) -> bool:
    """Whether the bulk copy engine can fetch its tiles for Hopper's matrix units to multiply as they are."""
    hopper = target.backend == "cuda" and target.arch == 90
    return hopper and not product.normed and product.stored.itemsize == 2 and product.size % (_LOADED // 2) == 0


def _streamed(product: Product, block_m: int, cores: int) -> Skinny:
    """Tiles of 128 rows of the weight, as many at a time as leave room for two programs per multiprocessor: with fewer
    rows each, ``x`` would be read as often as the weight."""
    block_n, block_k = _TALL // (1 + product.gated), 64
    stages = SHARED_MEMORY[90] // 2 // ((_TALL + block_m) * block_k * product.dtype.itemsize)
    tiles = triton.cdiv(product.out, block_n) * triton.cdiv(product.rows, block_m)
    splits = max(1, min(2 * cores // tiles, product.size // _LEAST_SPLIT, 8))
    weight_bytes = product.out * (1 + product.gated) * product.size * product.dtype.itemsize
    swap, warps = (1, 4) if block_m <= 64 else (0, 8)
    return Skinny(block_n, block_k, splits, swap, warps, stages, bulk=1, late=int(weight_bytes > _KEPT))


def _block_m(rows: int) -> int:
    return int(min(max(16, triton.next_power_of_2(rows)), MOST_ROWS))


@cache
def _chosen(product: Product, target: GPUTarget, device: torch.device) -> Gemv | Skinny:
    return choose(product, target, num_cores(device))


@cache
def _counters(device: torch.device) -> Tensor:
    """Where programs that share a tile count themselves; zero whenever no kernel runs. Of all launches on a device,
    which must come one after the other."""
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


def run(kernel: str, operands: Operands) -> tuple[Tensor, Tensor]:
    """:func:`launch` as is best for the device."""
    x, gated = operands.x, kernel.endswith("gate_up_silu")
    size, (values, _, scaled) = x.shape[-1], _parts(operands.weight)
    product = Product(kernel, x.dtype, x.numel() // size, size, values.shape[0] // (1 + gated), scaled)
    return launch(product, _chosen(product, current_target(), x.device), operands)


def _parts(weight: Weight) -> tuple[Tensor, Tensor | None, int]:
    """Values, scales, and :attr:`Product.scaled`."""
    return (weight, None, 0) if isinstance(weight, Tensor) else (weight.values, weight.scale, weight.block[0])


def launch(product: Product, config: Gemv | Skinny, operands: Operands) -> tuple[Tensor, Tensor]:
    """What the op makes of the operands, and the sum of ``x`` and the residual: ``x`` itself where there is none."""
    x = operands.x.contiguous()
    out = x.new_empty(*x.shape[:-1], product.out)
    residual = None if operands.residual is None else operands.residual.contiguous()
    total = operands.x if residual is None else torch.empty_like(x)
    if not product.rows:
        return out, total
    # What is not there is never touched: any tensor stands for it.
    given = (residual, operands.norm_weight, *_parts(operands.weight)[:2], operands.bias)
    tensors = [x, *(out if tensor is None else tensor for tensor in given), out, total]
    on = pdl.on()
    options = {
        "EPS": operands.eps,
        "SIZE": product.size,
        "OUT": product.out,
        "HAS_NORM": product.normed,
        "HAS_RESIDUAL": residual is not None,
        "HAS_BIAS": operands.bias is not None,
        "GATED": product.gated,
        "SCALED": product.scaled,
        "PDL": on,
        "num_warps": config.warps,
        **({"launch_pdl": True} if on else {}),
    }
    if isinstance(config, Gemv):
        _launch_gemv(product, config, tensors, operands.kept, options)
    else:
        assert operands.kept is None, "what was normed is kept by programs that have a row of it whole"
        _launch_skinny(product, config, tensors, options)
    return out, total


def _launch_gemv(
    product: Product, config: Gemv, tensors: list[Tensor], kept: Tensor | None, options: dict[str, Any]
) -> None:
    gemv_kernel[(triton.cdiv(product.out, config.rows),)](
        *tensors,
        tensors[-1] if kept is None else kept,
        product.rows,
        MOST_ROWS=triton.next_power_of_2(product.rows),
        ROWS=config.rows,
        THREADS=config.threads(current_target()),
        VECTOR=_LOADED // product.stored.itemsize,
        APART=config.apart,
        KEEPS=kept is not None,
        **options,
    )


def _launch_skinny(product: Product, config: Skinny, tensors: list[Tensor], options: dict[str, Any]) -> None:
    block_m, splits = _block_m(product.rows), config.splits
    assert product.scaled <= 1 or product.scaled % config.block_k == 0, "a tile lies in one block of the weight"
    grid = (triton.cdiv(product.out, config.block_n), splits, triton.cdiv(product.rows, block_m))
    partial = arrived = tensors[0]
    if splits > 1:
        assert grid[0] * grid[2] <= _COUNTERS, f"{grid[0] * grid[2]} tiles are split, and {_COUNTERS} can be counted"
        arrived = _counters(tensors[0].device)
        shape = (grid[0] * grid[2], splits, block_m * config.block_n * (1 + product.gated))
        partial = torch.empty(shape, dtype=torch.float32, device=arrived.device)
    x_tiles = weight_tiles = None
    if config.bulk:
        assert not product.normed, "what the bulk copy engine fetches goes to matrix units as it is"
        x_tiles = _tiled(tensors[0], product.rows, product.size, block_m, config.block_k)
        rows = product.out * (1 + product.gated)
        weight_tiles = _tiled(tensors[3], rows, product.size, config.block_n, config.block_k)
    skinny_kernel[grid](
        *tensors,
        partial,
        arrived,
        x_tiles,
        weight_tiles,
        product.rows,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLITS=splits,
        SWAP=config.swap,
        BULK=config.bulk,
        LATE=config.late,
        LINES=_lines(product, config),
        PRECISION=dot_precision(current_target()),
        num_stages=config.stages,
        **options,
    )


def _tiled(tensor: Tensor, rows: int, columns: int, *tile: int) -> TensorDescriptor:
    """A contiguous matrix, to be fetched in tiles. Made on the host and passed by value, so that a graph keeps it."""
    return TensorDescriptor(tensor, [rows, columns], [columns, 1], list(tile))


def _lines(product: Product, config: Skinny) -> int:
    """Lines of a row of the weight that a program asks for before it waits: a power of two."""
    each = triton.cdiv(product.size, config.splits) * product.stored.itemsize // _LINE
    return int(max(1, min(triton.next_power_of_2(each), _PREFETCHED // config.block_n // (1 + product.gated))))

"""Small-M GEMMs with a plain or fp8 weight, optionally fused with the norm before and SwiGLU after, one launch each:
:mod:`llmk_triton.gemm.gemv` for a handful of rows, :mod:`llmk_triton.gemm.skinny` for more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

from llmk_triton.common import pdl
from llmk_triton.common.targets import (
    MIN_SHARED_MEMORY,
    SHARED_MEMORY,
    current_target,
    dot_precision,
    has_wave32,
    num_multiprocessors,
)
from llmk_triton.common.tuned import tuned
from llmk_triton.gemm.gemv import gemv_kernel
from llmk_triton.gemm.problem import GemmProblem, Operands, Weight
from llmk_triton.gemm.skinny import skinny_kernel
from llmk_triton.gemm.split_k import COUNTERS, counters
from llmk_triton.kernel_spec import SMALL_N

MOST_ROWS = 128
"""Most rows (M) for which a single tile contains all rows."""

_MAX_GEMV_ROWS = 4
"""Most rows for which the GEMV kernel, which computes one row after the other, is bound by reading the weight."""
_LOAD_BYTES = 16
"""Bytes per load instruction of a thread."""
_REGISTER_BYTES = 256
"""Most bytes in a thread's registers, of the weight and of all rows of ``x`` but one."""
_NORM_ELEMENTS = 64
"""Most elements of a row of ``x`` that a thread norms, because it keeps them in float32."""
_PREFETCH_LINES = 1024
"""Cache lines that a program prefetches before it waits: few enough that all resident programs together don't fill
L2."""
_LINE = 128
"""Bytes of a cache line."""
_MIN_SPLIT_K = 256
"""Least elements of K per split."""
_L2_KEPT_BYTES = 32 << 20
"""Weight bytes that can be streamed without evicting prefetched lines from L2. After a larger weight, the lines that
the next kernel prefetched would be evicted before it uses them."""
_TMA_BLOCK_N = 128
"""Weight rows (N) of a tile that is loaded by TMA."""


@dataclass(frozen=True, slots=True)
class Gemv:
    """Configuration of the GEMV kernel: ``rows`` weight rows per program of ``warps`` warps. With ``per_warp``, each
    warp has rows of its own; otherwise, all warps share each row."""

    rows: int
    warps: int
    per_warp: int

    def threads(self, target: GPUTarget) -> int:
        """How many threads share a row."""
        return int(target.warp_size) * (1 if self.per_warp else self.warps)


@dataclass(frozen=True, slots=True)
class Skinny:
    """Configuration of the skinny kernel: tiles of ``block_n`` weight rows by ``block_k`` columns, with K split between
    ``splits`` programs. ``swap`` computes the transposed GEMM; ``warps`` and ``stages`` are Triton's; ``tma`` loads
    tiles by TMA, which needs rows aligned to 16 bytes; ``late_release`` lets the next kernel start only as this one
    ends."""

    block_n: int
    block_k: int
    splits: int
    swap: int
    warps: int
    stages: int
    tma: int = 0
    late_release: int = 0


def linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """As :func:`llmk.reference.linear.linear`, summed in float32."""
    return run("linear", Operands(x, weight, bias))[0]


def activate_linear(x: Tensor, activation: str, weight: Weight, bias: Tensor | None) -> Tensor:
    """See :func:`llmk_triton.activate_linear.make_activate_linear`."""
    return run("linear", Operands(x, weight, bias, activation=activation))[0]


def gate_up_silu(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """See :func:`llmk.reference.activations.make_gate_up_silu`; ``weight`` is ``[2 * I, H]``, gate before up."""
    return run("gate_up_silu", Operands(x, weight, bias))[0]


def add_rms_norm_linear(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Weight,
    bias: Tensor | None,
    *,
    residual_multiplier: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`llmk.reference.norm_linear.make_add_rms_norm_linear`."""
    return run("add_rms_norm_linear", Operands(x, weight, bias, residual, norm_weight, eps, factor=residual_multiplier))


def add_rms_norm_gate_up_silu(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Weight,
    bias: Tensor | None,
    *,
    residual_multiplier: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """See :func:`llmk.reference.norm_linear.make_add_rms_norm_gate_up_silu`."""
    operands = Operands(x, weight, bias, residual, norm_weight, eps, factor=residual_multiplier)
    return run("add_rms_norm_gate_up_silu", operands)


def add_rms_norm_router(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Weight,
    bias: Tensor | None,
    *,
    residual_multiplier: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`llmk.reference.norm_linear.make_add_rms_norm_router`; only for one row."""
    normed = x.new_empty(x.shape)
    operands = Operands(x, weight, bias, residual, norm_weight, eps, normed, residual_multiplier)
    logits, total = run("add_rms_norm_router", operands)
    return logits, normed, total


def choose(problem: GemmProblem, target: GPUTarget, num_sms: int) -> Gemv | Skinny:
    """The configuration to launch: the tuned one, or else a heuristic from the sizes of registers and shared memory and
    the number of multiprocessors."""
    found = tuned(problem.kernel, target, problem.weight_format, problem.shape, problem.rows)
    if found is not None:
        return Skinny(**found) if "block_n" in found else Gemv(**found)
    gemv = _gemv(problem, target) if problem.rows <= _MAX_GEMV_ROWS else None
    return gemv or _skinny(problem, target, num_sms)


def _gemv(problem: GemmProblem, target: GPUTarget) -> Gemv | None:
    """One row per warp if a warp's registers hold it; else the fewest warps that hold two rows, or one. ``None`` if
    none do."""
    lanes = target.warp_size
    x_bytes, row_bytes = problem.size * problem.dtype.itemsize, problem.size * problem.stored.itemsize

    def holds(rows: int, threads: int) -> bool:
        held = row_bytes * rows * (1 + problem.gated) + x_bytes * problem.rows - row_bytes
        normed = problem.size if problem.normed else 0
        return held <= _REGISTER_BYTES * threads and normed <= _NORM_ELEMENTS * threads

    if holds(1, lanes):
        return Gemv(rows=4, warps=4, per_warp=1)
    for rows in (2, 1):
        for warps in (4, 8, 16):
            if warps * lanes <= 1024 and holds(rows, warps * lanes):
                return Gemv(rows, warps, per_warp=0)
    return None


def _skinny(problem: GemmProblem, target: GPUTarget, num_sms: int) -> Skinny:
    block_m = _block_m(problem.rows)
    narrow = target.backend == "cuda" and 16 < block_m <= 64 and problem.out <= SMALL_N and not problem.gated
    if block_m > 16 and not narrow and _supports_tma(problem, target):
        return _tma_config(problem, block_m, num_sms)
    swap = target.backend == "cuda" and 90 <= target.arch < 120 and problem.dtype.itemsize == 2 and block_m <= 64
    block_n, block_k, warps, stages = 64, 64, 4, 4
    if problem.dtype.itemsize == 4 or has_wave32(target):
        block_n, block_k, stages = 32, 32, 1
    elif narrow:
        # Latency-bound: use many small programs.
        swap, block_n, (block_k, stages) = False, 16, (256, 2) if problem.size <= 2048 else (128, 3)
    elif target.backend == "hip":
        stages = 2
    elif target.backend == "xpu":
        block_n, block_k, warps, stages = 32, 64, 4 if block_m <= 64 else 8, 2
    elif swap or block_m == 16:
        block_n, block_k, stages = 64 if swap else 32, 128, 3
    if block_m == MOST_ROWS and problem.gated:
        warps = 8
    limit = SHARED_MEMORY.get(target.arch, MIN_SHARED_MEMORY)
    column = block_m * problem.dtype.itemsize + block_n * (1 + problem.gated) * problem.stored.itemsize
    while stages > 1 and stages * column * block_k > limit:
        stages -= 1
    tiles = triton.cdiv(problem.out, block_n) * triton.cdiv(problem.rows, block_m)
    splits = max(1, min(2 * num_sms // tiles, problem.size // _MIN_SPLIT_K, 8))
    return Skinny(block_n, block_k, splits, int(swap), warps, stages)


def _supports_tma(problem: GemmProblem, target: GPUTarget) -> bool:
    """Whether TMA can load its tiles for Hopper's tensor cores without a conversion."""
    hopper = target.backend == "cuda" and target.arch == 90
    return hopper and not problem.normed and problem.stored.itemsize == 2 and problem.size % (_LOAD_BYTES // 2) == 0


def _tma_config(problem: GemmProblem, block_m: int, num_sms: int) -> Skinny:
    """Tiles of 128 weight rows, with as many stages as leave room for two programs per multiprocessor: with fewer rows
    per tile, reading ``x`` would cost as much as reading the weight."""
    block_n, block_k = _TMA_BLOCK_N // (1 + problem.gated), 64
    stages = SHARED_MEMORY[90] // 2 // ((_TMA_BLOCK_N + block_m) * block_k * problem.dtype.itemsize)
    tiles = triton.cdiv(problem.out, block_n) * triton.cdiv(problem.rows, block_m)
    splits = max(1, min(2 * num_sms // tiles, problem.size // _MIN_SPLIT_K, 8))
    weight_bytes = problem.out * (1 + problem.gated) * problem.size * problem.dtype.itemsize
    swap, warps = (1, 4) if block_m <= 64 else (0, 8)
    return Skinny(block_n, block_k, splits, swap, warps, stages, tma=1, late_release=int(weight_bytes > _L2_KEPT_BYTES))


def _block_m(rows: int) -> int:
    return int(min(max(16, triton.next_power_of_2(rows)), MOST_ROWS))


@cache
def _chosen(problem: GemmProblem, target: GPUTarget, device: torch.device) -> Gemv | Skinny:
    """The configuration for the next power of two of rows: a kernel is compiled for that, and a step may have any
    number of rows, while those that are compiled ahead have powers of two."""
    rows = triton.next_power_of_2(problem.rows)
    return choose(replace(problem, rows=rows), target, num_multiprocessors(device))


def run(kernel: str, operands: Operands) -> tuple[Tensor, Tensor]:
    """:func:`launch` with the best configuration for the device."""
    x, gated = operands.x, kernel.endswith("gate_up_silu")
    size, (values, _, scaled) = x.shape[-1], _parts(operands.weight)
    problem = GemmProblem(kernel, x.dtype, x.numel() // size, size, values.shape[0] // (1 + gated), scaled)
    return launch(problem, _chosen(problem, current_target(), x.device), operands)


def _parts(weight: Weight) -> tuple[Tensor, Tensor | None, int]:
    """Values, scales, and :attr:`GemmProblem.scaled`."""
    return (weight, None, 0) if isinstance(weight, Tensor) else (weight.values, weight.scale, weight.block[0])


def launch(problem: GemmProblem, config: Gemv | Skinny, operands: Operands) -> tuple[Tensor, Tensor]:
    """The op's result, and the sum of ``x`` and the residual (``x`` itself if there is no residual)."""
    x = operands.x.contiguous()
    out = x.new_empty(*x.shape[:-1], problem.out)
    residual = None if operands.residual is None else operands.residual.contiguous()
    total = operands.x if residual is None else torch.empty_like(x)
    if not problem.rows:
        return out, total
    # Absent tensors are never accessed; any tensor can be passed for them.
    given = (residual, operands.norm_weight, *_parts(operands.weight)[:2], operands.bias)
    tensors = [x, *(out if tensor is None else tensor for tensor in given), out, total]
    on = pdl.on()
    options = {
        "EPS": operands.eps,
        "SIZE": problem.size,
        "OUT": problem.out,
        "HAS_NORM": problem.normed,
        "HAS_RESIDUAL": residual is not None,
        "FACTOR": 1.0 if residual is None else operands.factor,
        "HAS_BIAS": operands.bias is not None,
        "GATED": problem.gated,
        "SCALED": problem.scaled,
        "ACTIVATION": operands.activation,
        "PDL": on,
        "num_warps": config.warps,
        **({"launch_pdl": True} if on else {}),
    }
    if isinstance(config, Gemv):
        _launch_gemv(problem, config, tensors, operands.normed_out, options)
    else:
        assert operands.normed_out is None, "only the GEMV kernel returns the norm's result"
        _launch_skinny(problem, config, tensors, options)
    return out, total


def _launch_gemv(
    problem: GemmProblem, config: Gemv, tensors: list[Tensor], normed_out: Tensor | None, options: dict[str, Any]
) -> None:
    gemv_kernel[(triton.cdiv(problem.out, config.rows),)](
        *tensors,
        tensors[-1] if normed_out is None else normed_out,
        problem.rows,
        MOST_ROWS=triton.next_power_of_2(problem.rows),
        ROWS=config.rows,
        THREADS=config.threads(current_target()),
        VECTOR=_LOAD_BYTES // problem.stored.itemsize,
        APART=config.per_warp,
        KEEPS=normed_out is not None,
        **options,
    )


def _launch_skinny(problem: GemmProblem, config: Skinny, tensors: list[Tensor], options: dict[str, Any]) -> None:
    block_m, splits = _block_m(problem.rows), config.splits
    assert problem.scaled <= 1 or problem.scaled % config.block_k == 0, "block_k must divide the scales' block size"
    grid = (triton.cdiv(problem.out, config.block_n), splits, triton.cdiv(problem.rows, block_m))
    partial = arrived = tensors[0]
    if splits > 1:
        assert grid[0] * grid[2] <= COUNTERS, f"{grid[0] * grid[2]} tiles, {COUNTERS} counters"
        arrived = counters(tensors[0].device)
        shape = (grid[0] * grid[2], splits, block_m * config.block_n * (1 + problem.gated))
        partial = torch.empty(shape, dtype=torch.float32, device=arrived.device)
    x_tiles = weight_tiles = None
    if config.tma:
        assert not problem.normed, "a tile that TMA loads cannot be normed"
        x_tiles = _tiled(tensors[0], problem.rows, problem.size, block_m, config.block_k)
        rows = problem.out * (1 + problem.gated)
        weight_tiles = _tiled(tensors[3], rows, problem.size, config.block_n, config.block_k)
    skinny_kernel[grid](
        *tensors,
        partial,
        arrived,
        x_tiles,
        weight_tiles,
        problem.rows,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLITS=splits,
        SWAP=config.swap,
        BULK=config.tma,
        LATE=config.late_release,
        LINES=_lines(problem, config),
        PRECISION=dot_precision(current_target()),
        num_stages=config.stages,
        **options,
    )


def _tiled(tensor: Tensor, rows: int, columns: int, *tile: int) -> TensorDescriptor:
    """A TMA descriptor of a contiguous matrix. It is created on the host and passed by value, so a captured graph
    contains it."""
    return TensorDescriptor(tensor, [rows, columns], [columns, 1], list(tile))


def _lines(problem: GemmProblem, config: Skinny) -> int:
    """Cache lines of a weight row that a program prefetches before it waits: a power of two."""
    each = triton.cdiv(problem.size, config.splits) * problem.stored.itemsize // _LINE
    return int(max(1, min(triton.next_power_of_2(each), _PREFETCH_LINES // config.block_n // (1 + problem.gated))))

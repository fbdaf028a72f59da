"""fp8 weights: products of few rows beside those with quantized activations, what quantizing those takes, and attention
in an fp8 cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_cases.attention import BOUND, attention_query, expected, random_steps
from kernel_cases.gemm import NORMED_ROWS, ROTATED_BYTES, TOLERANCE, Site, model_sites
from kernel_cases.harness import SHAPES, TINY, Case, Named, Shape
from llmk.reference import quantize
from llmk.reference.quantized_weight import ScaledWeight, prepare_fp8_block, prepare_fp8_channel
from llmk_cuda import fp8
from llmk_cuda.quantize import ROW_UNIT
from llmk_triton.attention.backend import TritonAttention
from llmk_triton.gemm.problem import GemmProblem, Operands

ROWS = (1, 2, 4, 16, 32, 64)
MANY_ROWS = (64, 128, 2048)
OF_FP8 = 0.06
"""Relative: two operands with 3 bits of mantissa."""

_KINDS: dict[str, tuple[Callable[[Tensor], dict[str, Tensor]], Callable[..., ScaledWeight], int]] = {
    "channel": (quantize.quantize_fp8_channel, prepare_fp8_channel, 1),
    "block": (quantize.quantize_fp8_block, prepare_fp8_block, 128),
}


@dataclass(slots=True)
class Fp8Site(Site):
    """A product with an fp8 weight that has scales by ``kind``."""

    kind: str = "channel"

    @property
    def problem(self) -> GemmProblem:
        """What is to be launched."""
        return GemmProblem(self.kernel, self.dtype, self.rows, self.size, self.out, _KINDS[self.kind][2])

    def fill(self, device: torch.device) -> None:
        """Makes the operands, random."""
        make, prepare, _ = _KINDS[self.kind]
        plain = Site(self.kernel, self.rows, self.size, self.out, self.dtype)
        plain.fill(device)
        self.operands = [replace(o, weight=prepare(make(o.weight))) for o in plain.operands]

    def by_torch(self, i: int) -> tuple[Tensor, Tensor]:
        """The reference: torch's product with the dequantized weight."""
        o = self.operands[i]
        plain = Site(self.kernel, self.rows, self.size, self.out, self.dtype)
        plain.operands = [replace(o, weight=_scaled(o).dequantize(self.dtype))]
        return plain.by_torch(0)

    def by_library(self, i: int) -> tuple[Tensor, Tensor]:
        """As :meth:`by_scaled_mm`, alone."""
        return self.by_scaled_mm(i)

    def by_scaled_mm(self, i: int) -> tuple[Tensor, Tensor]:
        """Activations quantized, then cuBLAS or CUTLASS."""
        o, run = self.operands[i], fp8.linear_rowwise if self.kind == "channel" else fp8.linear_block
        return run(o.x, _scaled(o), None), o.x

    def case(self, device: torch.device, way: str) -> Case:
        """As it ships, or in another way."""
        self.fill(device)
        values = _scaled(self.operands[0]).values
        moved = values.nbytes + self.rows * (self.size + self.out) * self.dtype.itemsize
        reference = self.by_torch(0)
        tolerance = OF_FP8 if way == "by_scaled_mm" else TOLERANCE
        flops = 2 * self.rows * values.numel()
        return Case(getattr(self, way), lambda: reference, moved, flops, len(self.operands), tolerance)


def sites(shapes: tuple[Shape, ...], all_rows: tuple[int, ...]) -> Iterator[tuple[str, Callable[[], Fp8Site]]]:
    """Every product of the models but the head, which stays plain, with every number of rows, by name."""
    for kind, shape, rows in product(_KINDS, shapes, all_rows):
        for site, kernel, size, out in model_sites(shape):
            if site != "head" and (rows in NORMED_ROWS or not site.startswith("norm")):
                make = partial(Fp8Site, kernel, rows, size, out, shape.dtype, kind=kind)
                yield f"fp8 {kind} {site} {shape.name} {out}x{size} x{rows}", make


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """Products of few rows; those with quantized activations where the device has them; quantizing alone; attention."""
    shapes = TINY if tiny else SHAPES
    for name, make in sites(shapes, (1, 3) if tiny else ROWS):
        yield name, partial(make().case, device, "shipped")
    for shape, name in product(shapes, ("quantize_rows", "quantize_groups")):
        for tokens in (3,) if tiny else MANY_ROWS:
            size = 256 if tiny else shape.hidden
            yield f"fp8 {name} {shape.name} x{tokens}", partial(_quantize, getattr(fp8, name), tokens, size, device)
    for shape, (requests, length) in product(shapes, ((2, 80),) if tiny else ((1, 1100), (64, 400), (64, 1100))):
        name = f"fp8 cache decode {shape.name} {requests}x{length}"
        yield name, partial(_attention, shape, requests, length, device)
    if tiny:
        return
    for name, make in sites(shapes, MANY_ROWS):
        if make().kernel == "linear":
            yield f"{name} by_scaled_mm", partial(make().case, device, "by_scaled_mm")


def _quantize(run: Callable[[Tensor], tuple[Tensor, Tensor]], tokens: int, size: int, device: torch.device) -> Case:
    sets = max(1, min(32, ROTATED_BYTES // (3 * tokens * size)))
    xs = [torch.randn(tokens, size, device=device).bfloat16() for _ in range(sets)]

    def by_torch() -> tuple[Tensor, Tensor]:
        scales = run(xs[0])[1].shape[1]
        x = F.pad(xs[0], (0, 0, 0, -tokens % (1 if scales == 1 else ROW_UNIT)))
        groups = x.float().unflatten(1, (scales, -1))
        scale = (groups.abs().amax(dim=2) / torch.finfo(torch.float8_e4m3fn).max).clamp(min=torch.finfo().tiny)
        return (groups / scale[..., None]).to(torch.float8_e4m3fn).flatten(1), scale

    return Case(lambda i: run(xs[i]), by_torch, 3 * xs[0].numel(), 0, sets)


def _attention(shape: Shape, requests: int, length: int, device: torch.device) -> Case:
    backend = TritonAttention(attention_query(shape, cache_dtype="float8_e4m3fn"), device)
    least = 2 * shape.kv_heads * shape.head_dim * requests * length
    sets = max(1, min(32, ROTATED_BYTES // least))
    steps = random_steps(backend, requests, 1, length, sets, device, bound=BOUND)
    steps.cache = steps.cache.to(torch.float8_e4m3fn)
    meta = [backend.prepare(step) for step in steps.index]
    flops = 4 * shape.heads * shape.head_dim * requests * length
    return Case(
        lambda i: backend.run(steps.q, steps.cache, meta[i], scales=(1.0, 1.0)),
        lambda: expected(backend, steps),
        least + 2 * steps.q.nbytes,
        flops,
        sets,
    )


def _scaled(operands: Operands) -> ScaledWeight:
    assert isinstance(operands.weight, ScaledWeight)
    return operands.weight

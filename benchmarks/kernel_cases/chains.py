"""Kernels one after the other, as a model has them: one that begins early hides what it waits for, and one that can't
holds up the next, so that what a product is worth shows in the time of all. A call is a layer, with weights of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_cases.harness import SHAPES, TINY, Case, Named, Shape
from kernel_cases.moe import Inputs
from llmk_triton.common import norms
from llmk_triton.gemm import small_m
from llmk_triton.moe import fused as moe

EPS = 1e-6
LAYERS = 24
EXPERTS = 4
"""Sets of experts that layers take in turn: there would be no room for all."""
ROUTERS = ((8, 2048), (32, 2048), (128, 1024), (128, 2048), (256, 2048), (128, 4096), (256, 4096))
"""Outputs and inputs."""

MatMul = Callable[[Tensor, Tensor], Tensor]


def cases(device: torch.device, *, tiny: bool) -> Iterator[Named]:
    """Routers between two norms, and the half of a layer that has experts; each as it ships and in another way."""
    shape = replace(TINY[0], experts=8, top_k=2) if tiny else SHAPES[2]
    for out, size in ((5, 64),) if tiny else ROUTERS:
        for rows in (17,) if tiny else (17, 32, 64):
            for way, product in (("", _linear), (" by_torch", F.linear)):
                name = f"chain router {out}x{size} x{rows}{way}"
                yield name, partial(_router, rows, size, out, product, shape.dtype, device)
    for rows in (1, 17) if tiny else (1, 32, 64):
        for way in ("", " apart" if rows == 1 else " by_torch"):
            yield f"chain experts {shape.name} x{rows}{way}", partial(_experts, shape, rows, not way, device)


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return small_m.linear(x, weight, None)


def _random(device: torch.device, dtype: torch.dtype, *sizes: int) -> Tensor:
    return torch.randn(*sizes, device=device).to(dtype)


def _weights(device: torch.device, dtype: torch.dtype, out: int, size: int) -> list[Tensor]:
    return [_random(device, dtype, out, size) / size**0.5 for _ in range(LAYERS)]


def _router(rows: int, size: int, out: int, product: MatMul, dtype: torch.dtype, device: torch.device) -> Case:
    weights, (x, residual) = _weights(device, dtype, out, size), _random(device, dtype, 2, rows, size)
    before, after = torch.ones(size, dtype=dtype, device=device), torch.ones(out, dtype=dtype, device=device)

    def run(i: int, product: MatMul = product) -> Tensor:
        normed, _ = norms.add_rms_norm(x, residual, before, EPS)
        return norms.rms_norm(product(normed, weights[i]), after, EPS)

    return Case(run, lambda: run(0, F.linear), weights[0].nbytes, sets=LAYERS)


@dataclass(slots=True)
class Half:
    """From the product after attention to the one before the next, with experts between. Products of one row are this
    package's, each with the norm before it; of more rows they are torch's, but the router's. Where that is not
    ``shipped``, it is apart from its norm, or torch's."""

    top_k: int
    norm: Tensor
    out: list[Tensor]
    router: list[Tensor]
    experts: list[dict[str, Tensor]]
    qkv: list[Tensor]

    def run(self, i: int, attended: Tensor, residual: Tensor, shipped: bool) -> tuple[Tensor, ...]:
        """Layer ``i``; returns what doesn't depend on which experts are taken, as those that tie go either way."""
        few = attended.shape[0] == 1
        x = (_linear if few else F.linear)(attended, self.out[i])
        logits, normed, total = self._route(i, x, residual, shipped)
        experts = self.experts[i % len(self.experts)]
        made = moe.fused_moe(normed, logits, experts, top_k=self.top_k, renormalize=True)
        if few:
            small_m.add_rms_norm_linear(made, total, self.norm, EPS, self.qkv[i], None)
        else:
            F.linear(norms.add_rms_norm(made, total, self.norm, EPS)[0], self.qkv[i])
        return logits, normed, total

    def _route(self, i: int, x: Tensor, residual: Tensor, shipped: bool) -> tuple[Tensor, Tensor, Tensor]:
        few = x.shape[0] == 1
        if few and shipped:
            return small_m.add_rms_norm_router(x, residual, self.norm, EPS, self.router[i], None)
        normed, total = norms.add_rms_norm(x, residual, self.norm, EPS)
        return (_linear if few or shipped else F.linear)(normed, self.router[i]), normed, total


def _experts(shape: Shape, rows: int, shipped: bool, device: torch.device) -> Case:
    dtype, hidden, heads = shape.dtype, shape.hidden, shape.heads * shape.head_dim
    half = Half(
        top_k=shape.top_k,
        norm=torch.ones(hidden, dtype=dtype, device=device),
        out=_weights(device, dtype, hidden, heads),
        router=_weights(device, dtype, shape.experts, hidden),
        experts=[Inputs.random(shape, 1, device).weights for _ in range(EXPERTS)],
        qkv=_weights(device, dtype, heads + 2 * shape.kv_heads * shape.head_dim, hidden),
    )
    attended, residual = _random(device, dtype, rows, heads), _random(device, dtype, rows, hidden)
    taken = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** rows)
    moved = round(taken * sum(weight[0].nbytes for weight in half.experts[0].values()))
    moved += sum(weights[0].nbytes for weights in (half.out, half.router, half.qkv))
    return Case(
        lambda i: half.run(i, attended, residual, shipped),
        lambda: half.run(0, attended, residual, not shipped),
        moved,
        sets=LAYERS,
    )

"""Ops with a product in them, over the kernels and weights of linear sites, against the parts in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.api import KernelSpec, LinearQuery, OpQuery
from llmk.api.matching import match
from llmk.reference.op_examples import Draw
from llmk_testing.bench import Bench
from llmk_testing.binding import bind, oracle
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.inputs import mapped
from llmk_testing.recording import check_recorded
from llmk_testing.rows import counts
from llmk_testing.tolerance import Right, chained, check, check_same
from llmk_testing.watch import poisoned
from llmk_testing.weights import formats, stored

_GATED = ("gate_up_silu", "gate_up_gelu_tanh", "add_rms_norm_gate_up_silu")
_NORMED = ("add_rms_norm_linear", "add_rms_norm_router", "add_rms_norm_gate_up_silu")
OPS = (*_GATED, "add_rms_norm_linear", "add_rms_norm_router")
_EPS = 1e-6
_SIZES = ((512, 256, False), (72, 40, True), (1024, 1536, False))
"""Inputs, outputs (half of them gates, where there are some), and whether there is a bias."""


@dataclass(frozen=True, slots=True)
class Site:
    """A linear site and the kernel that serves it, with weights in a format."""

    kernel: KernelSpec
    inputs: int
    outputs: int
    bias: bool
    weight_format: str


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one such op, over every layout of weights that an installed kernel keeps."""
    sites = dict(_sites(bench))
    wanted = {label: partial(_query, spec.op, site) for label, site in sites.items()}
    candidate = Candidate(spec, bench, wanted)
    yield from candidate.honesty()
    for asked in candidate.served:
        site = sites[asked.label.rpartition(", ")[0]]
        yield candidate.case(f"agrees with the reference: {asked.label}", partial(_agrees, candidate, asked, site))
    for asked in candidate.served[:2]:
        site = sites[asked.label.rpartition(", ")[0]]
        if spec.capture != "none" and site.kernel.capture != "none":
            name = f"can be recorded and replayed: {asked.label}"
            yield candidate.case(name, partial(_recorded, candidate, asked, site))


def _sites(bench: Bench) -> Iterator[tuple[str, Site]]:
    """Of each layout and size, one kernel."""
    for inputs, outputs, bias in _SIZES:
        layouts = set()
        for kernel in (kernel.spec for kernel in bench.registry.kernels("linear")):
            for stored_as in formats(bench.registry):
                dtype = bench.facts.dtypes[0]
                query = LinearQuery(
                    platform=bench.facts,
                    site="linear",
                    dtype=dtype,
                    in_features=inputs,
                    out_features=outputs,
                    bias=bias,
                    weight_format=stored_as,
                )
                if kernel.layout not in layouts and _stores(stored_as, inputs) and match(kernel, query):
                    layouts.add(kernel.layout)
                    label = f"{inputs} to {outputs}{' with bias' if bias else ''} over {kernel.id}"
                    yield label, Site(kernel, inputs, outputs, bias, stored_as)


def _stores(weight_format: str, inputs: int) -> bool:
    return weight_format != "int4_group" or inputs % 128 == 0


def _query(op: str, over: Site, **fields: Any) -> OpQuery:
    facts = {"size": over.inputs} if op in _NORMED else {}
    if op in _GATED:
        facts["intermediate_size"] = over.outputs // 2
    return OpQuery(op=op, facts=facts, linear=over.kernel.id, weight_layout=over.kernel.layout, **fields)


class Product:
    """The op with a weight that the site's kernel prepared; its reference with what that means."""

    def __init__(self, candidate: Candidate[OpQuery], asked: Asked[OpQuery], site: Site) -> None:
        bench, spec, self.site = candidate.bench, candidate.spec, site
        self.dtype, self.device, self.normed = asked.dtype, bench.device, spec.op in _NORMED
        self.draw = Draw(bench.random("op", asked.label), asked.dtype)
        weight = self.draw.floats(site.outputs, site.inputs, scale=site.inputs**-0.5)
        self.stored = stored(bench.registry, site.weight_format, weight)
        self.bias = self.draw.floats(site.outputs) if site.bias else None
        self.norm = self.draw.floats(site.inputs)
        prepare = candidate.load(site.kernel.prepare) if site.kernel.prepare else lambda given: given["weight"]
        self.weight = prepare({name: tensor.to(bench.device) for name, tensor in self.stored.parameters.items()})
        linear: Callable[..., Tensor] = candidate.load(site.kernel.implementation)
        self.run = bind(bench.registry, spec, {"linear": linear})
        self.reference = bind(bench.registry, oracle(bench.registry, spec.op), {"linear": F.linear})

    def rows(self, count: int, residual: bool) -> tuple[Any, ...]:
        """What comes before the weight, on the host."""
        x = self.draw.floats(count, self.site.inputs)
        if not self.normed:
            return (x,)
        return x, self.draw.floats(count, self.site.inputs) if residual else None, self.norm, _EPS

    def __call__(self, rows: tuple[Any, ...]) -> tuple[Tensor, ...]:
        bias = None if self.bias is None else self.bias.to(self.device)
        out = self.run(*rows, self.weight, bias)
        return out if isinstance(out, tuple) else (out,)

    def check(self, out: tuple[Tensor, ...], rows: tuple[Any, ...], what: str) -> float:
        """Compares."""
        wide = mapped(torch.Tensor.float, rows)
        right = self.reference(*wide, self.stored.meaning, None if self.bias is None else self.bias.float())
        right = right if isinstance(right, tuple) else (right,)
        assert len(out) == len(right), f"{what}: {len(out)} tensors came, {len(right)} were expected"
        bounds = (self.stored.bound or chained(self.dtype), None, None)
        pairs = zip(out, right, bounds, strict=False)
        return max(check(found, Right(values, self.dtype), what, bound) for found, values, bound in pairs)


def _agrees(candidate: Candidate[OpQuery], asked: Asked[OpQuery], site: Site) -> str:
    product, errors = Product(candidate, asked, site), []
    for count in counts(_shared(candidate.spec, site.kernel), few=not candidate.bench.thorough):
        for residual in (True, False)[: 2 if product.normed else 1]:
            rows = product.rows(count, residual)
            given = mapped(lambda tensor: tensor.to(product.device, copy=True), rows)
            with poisoned():
                out = product(given)
            what = f"{count} rows" + (", without a residual" if product.normed and not residual else "")
            errors.append(product.check(out, rows, what))
            for name, after, before in zip(("x", "residual"), given, rows, strict=False):
                if before is not None:
                    check_same(after, before, f"{what}: {name}, which is an input")
    return agreeing(errors)


def _shared(spec: KernelSpec, kernel: KernelSpec) -> tuple[Any, ...]:
    """The bands of a composite are its product's, too."""
    return kernel.bands if spec.parts else spec.bands


def _recorded(candidate: Candidate[OpQuery], asked: Asked[OpQuery], site: Site) -> str:
    product = Product(candidate, asked, site)
    count = counts(_shared(candidate.spec, site.kernel), few=True)[0]
    inputs = [product.rows(count, True) for _ in range(2)]
    given = mapped(lambda tensor: tensor.to(product.device, copy=True), inputs[0])

    def load(i: int) -> None:
        for into, values in zip(given, inputs[i], strict=True):
            if isinstance(into, Tensor):
                into.copy_(values)

    def judge(i: int, out: tuple[Tensor, ...]) -> float:
        return product.check(out, inputs[i], "a replay for other rows")

    return check_recorded(candidate.bench, lambda: product(given), load, judge, 2)

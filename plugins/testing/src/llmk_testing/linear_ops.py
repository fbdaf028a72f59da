"""Ops with a linear kernel, over the kernels and weights of linear sites, against the parts in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from llmk.api import KernelSpec, LinearQuery, OpContract, OpQuery
from llmk.api.matching import match
from llmk.reference.op_examples import Draw, Facts, OpExamples
from llmk_testing.bench import Bench
from llmk_testing.binding import bind, oracle
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.recording import check_recorded
from llmk_testing.rows import counts
from llmk_testing.tolerance import Right, chained, check, check_same
from llmk_testing.trees import mapped, mapped_values, tensors
from llmk_testing.watch import poisoned
from llmk_testing.weights import formats, stored

_SIZES = ((512, 256, False), (72, 40, True), (1024, 1536, False))
"""Inputs, outputs, and whether there is a bias."""


@dataclass(frozen=True, slots=True)
class Site:
    """A linear site, the kernel that serves it, and the op's facts."""

    kernel: KernelSpec
    query: LinearQuery
    facts: Facts


def cases(spec: KernelSpec, bench: Bench, contract: OpContract, examples: OpExamples) -> Iterator[Case]:
    """The cases of one such op, over every layout of weights that an installed kernel keeps."""
    sites = dict(_sites(bench, examples))
    wanted = {label: partial(_query, spec.op, site) for label, site in sites.items()}
    candidate = Candidate(spec, bench, wanted)
    yield from candidate.honesty()
    placed = [(asked, sites[asked.label.rpartition(", ")[0]]) for asked in candidate.served]
    # A kernel that keeps the layout may serve fewer dtypes than the op.
    placed = [
        (asked, site) for asked, site in placed if match(site.kernel, replace(site.query, dtype=asked.query.dtype))
    ]
    for asked, site in placed:
        run = partial(_agrees, candidate, partial(LinearOp, candidate, asked, site, contract, examples))
        yield candidate.case(f"agrees with the reference: {asked.label}", run)
    for asked, site in placed[:2]:
        if spec.capture != "none" and site.kernel.capture != "none":
            run = partial(_recorded, candidate, partial(LinearOp, candidate, asked, site, contract, examples))
            yield candidate.case(f"can be recorded and replayed: {asked.label}", run)


def _sites(bench: Bench, examples: OpExamples) -> Iterator[tuple[str, Site]]:
    """Of each layout and size, one kernel; with all facts that the op has there."""
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
                    for number, facts in enumerate(examples.facts_at(query)):
                        yield f"{label}{f', facts {number}' if number else ''}", Site(kernel, query, facts)


def _stores(weight_format: str, inputs: int) -> bool:
    return weight_format not in ("int4_group", "int8_group") or inputs % 128 == 0


def _query(op: str, over: Site, **fields: Any) -> OpQuery:
    return OpQuery(op=op, facts=over.facts, linear=over.kernel.id, weight_layout=over.kernel.layout, **fields)


class LinearOp:
    """The op with a weight that the site's kernel prepared; its reference with what that means."""

    def __init__(
        self,
        candidate: Candidate[OpQuery],
        asked: Asked[OpQuery],
        site: Site,
        contract: OpContract,
        examples: OpExamples,
    ) -> None:
        bench, spec, query = candidate.bench, candidate.spec, site.query
        self.contract, self.examples, self.kernel = contract, examples, site.kernel
        self.facts = {**site.facts, "in_features": query.in_features, "out_features": query.out_features}
        self.dtype, self.device = asked.dtype, bench.device
        self.draw = Draw(bench.random("op", asked.label), asked.dtype)
        weight = self.draw.floats(query.out_features, query.in_features, scale=query.in_features**-0.5)
        self.stored = stored(bench.registry, query.weight_format, weight)
        self.bias = self.draw.floats(query.out_features) if query.bias else None
        self.options = examples.options_at(self.draw, self.facts)
        self.on_device = mapped_values(lambda tensor: tensor.to(bench.device), self.options)
        prepare = candidate.load(site.kernel.prepare) if site.kernel.prepare else lambda given: given["weight"]
        self.weight = prepare({name: tensor.to(bench.device) for name, tensor in self.stored.parameters.items()})
        linear: Callable[..., Tensor] = candidate.load(site.kernel.implementation)
        self.run = bind(bench.registry, spec, {"linear": linear})
        self.reference = bind(bench.registry, oracle(bench.registry, spec.op), {"linear": F.linear})

    def rows(self, count: int, without: str = "") -> tuple[Any, ...]:
        """What comes before the weight, on the host; ``None`` in place of the argument ``without``."""
        made = self.examples.make(self.draw, self.facts, count)
        names = self.contract.arguments[: len(made)]
        return tuple(None if name == without else value for name, value in zip(names, made, strict=True))

    def __call__(self, rows: tuple[Any, ...]) -> list[Tensor]:
        bias = None if self.bias is None else self.bias.to(self.device)
        return tensors(self.run(*rows, self.weight, bias, **self.on_device))

    def check(self, out: list[Tensor], after: tuple[Any, ...], rows: tuple[Any, ...], what: str) -> float:
        """Compares results, and what became of the arguments: those that the op does not change are the same."""
        wide = mapped(lambda x: x.float() if x.is_floating_point() else x.clone(), rows)
        bias = None if self.bias is None else self.bias.float()
        right = tensors(self.reference(*wide, self.stored.meaning, bias, **self.options))
        assert len(out) == len(right), f"{what}: {len(out)} tensors came, {len(right)} were expected"
        bounds = [self.stored.bound or chained(self.dtype), *[None] * len(right)]
        pairs = zip(out, right, bounds, strict=False)
        errors = [check(found, Right(values, self.dtype), what, bound) for found, values, bound in pairs]
        for name, actual, before, expected in zip(self.contract.arguments, after, rows, wide, strict=False):
            if name in self.contract.mutates_args:
                errors.append(check(actual, Right(expected, actual.dtype), f"{what}: {name}, written in place"))
            elif isinstance(before, Tensor):
                check_same(actual, before, f"{what}: {name}, which is an input")
        return max(errors)


def _agrees(candidate: Candidate[OpQuery], make: Callable[[], LinearOp]) -> str:
    op, errors = make(), []
    for count in counts(_shared(candidate.spec, op.kernel), few=not candidate.bench.thorough):
        for without in ("", *op.examples.optional):
            rows = op.rows(count, without)
            given = mapped(lambda tensor: tensor.to(op.device, copy=True), rows)
            with poisoned():
                out = op(given)
            errors.append(op.check(out, given, rows, f"{count} rows{f', without {without}' if without else ''}"))
    return agreeing(errors)


def _shared(spec: KernelSpec, kernel: KernelSpec) -> tuple[Any, ...]:
    """The bands of a composite are those of its linear kernel, too."""
    return kernel.bands if spec.parts else spec.bands


def _recorded(candidate: Candidate[OpQuery], make: Callable[[], LinearOp]) -> str:
    op = make()
    count = counts(_shared(candidate.spec, op.kernel), few=True)[0]
    first, other = op.rows(count), op.rows(count)
    inputs = [first, tuple(new if isinstance(new, Tensor) else kept for kept, new in zip(first, other, strict=True))]
    given = mapped(lambda tensor: tensor.to(op.device, copy=True), inputs[0])

    def load(i: int) -> None:
        for into, values in zip(tensors(given), tensors(inputs[i]), strict=True):
            into.copy_(values)

    def judge(i: int, out: list[Tensor]) -> float:
        return op.check(out, given, inputs[i], "a replay for other rows")

    return check_recorded(candidate.bench, lambda: op(given), load, judge, 2)

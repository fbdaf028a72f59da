"""Ops with a linear kernel, over the kernels and weights of linear sites, against the parts in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.api import KernelSpec, LinearQuery, OpContract, OpQuery
from llmk.api.matching import match
from llmk.reference.op_examples import Facts, OpExamples
from llmk_testing.bench import Bench
from llmk_testing.binding import oracle
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.op_under_test import Make, Op
from llmk_testing.recording import check_recorded, is_portable
from llmk_testing.rows import counts
from llmk_testing.suites import kernel_costs, op_calls, op_rows
from llmk_testing.tolerance import chained
from llmk_testing.trees import tensors
from llmk_testing.watch import poisoned
from llmk_testing.weights import formats, stored

_SIZES = ((512, 256, False), (72, 40, True), (1024, 1536, False))
"""Inputs, outputs, and whether there is a bias."""
_WIDE = (128, 8200, False)
"""The same of a plain weight: tiles of thousands of outputs, or of halves of them, leave a part of the last."""
_MANY = 300
"""Rows of which a tile of outputs may have another width than of a few."""
_INVARIANT = 3
"""Queries whose rows are tried in other batches."""


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
    placed = {asked.label: sites[asked.label.rpartition(", ")[0]] for asked in candidate.served}
    # A kernel that keeps the layout may serve fewer dtypes than the op.
    served = [
        asked
        for asked in candidate.served
        for site in [placed[asked.label]]
        if match(site.kernel, replace(site.query, dtype=asked.query.dtype))
    ]
    make = partial(LinearOp, candidate, placed, contract, examples)
    for asked in served:
        run = partial(_agrees, candidate, make, asked, placed[asked.label])
        yield candidate.case(f"agrees with the reference: {asked.label}", run)
    for asked in served[:2]:
        kernel = placed[asked.label].kernel
        if spec.capture != "none" and kernel.capture != "none":
            run = partial(_recorded, candidate, make, asked, kernel)
            yield candidate.case(f"can be recorded and replayed: {asked.label}", run)
    yield from op_calls.cases(candidate, make, served[:2])
    yield from _of_rows(candidate, make, served, placed, by_row=bool(examples.by_row))


def _of_rows(
    candidate: Candidate[OpQuery],
    make: Make,
    served: Sequence[Asked[OpQuery]],
    placed: Mapping[str, Site],
    *,
    by_row: bool,
) -> Iterator[Case]:
    """What ops of rows are tried with, too: at the first site, in each dtype. An op of parts is as deterministic, and
    goes from row to row as much, as its linear kernel."""
    first = [asked for asked in served if placed[asked.label] is placed[served[0].label]]

    def invariant(asked: Asked[OpQuery]) -> bool:
        declared = candidate.serves(replace(asked.query, deterministic=True))
        parts = [oracle(candidate.bench.registry, name) for name in candidate.spec.parts if name != "linear"]
        kernels = (placed[asked.label].kernel, *parts)
        return bool(declared) and (not candidate.spec.parts or all(kernel.deterministic for kernel in kernels))

    one_by_one = any(invariant(asked) for asked in first)
    yield from kernel_costs.op_cases(candidate, make, first[:2], by_row=by_row, one_by_one=one_by_one)
    if not by_row:
        return
    narrowed = any(placed[asked.label].query.weight_format != "plain" for asked in first)
    yield from op_rows.cases(candidate, make, first, narrowed=narrowed)
    for asked in first:
        yield op_calls.odd_case(candidate, make, asked)
    for asked in [asked for asked in served if invariant(asked)][:_INVARIANT]:
        yield candidate.case(
            f"rows don't depend on the batch: {asked.label}", partial(op_rows.deterministic, make, asked)
        )


def _sites(bench: Bench, examples: OpExamples) -> Iterator[tuple[str, Site]]:
    """Of each layout and size, one kernel; with all facts that the op has there. The widest is tried once."""
    for inputs, outputs, bias in (*_SIZES, _WIDE):
        layouts: set[str] = set()
        usual = (inputs, outputs, bias) != _WIDE
        for kernel in (kernel.spec for kernel in bench.registry.kernels("linear")):
            for stored_as in formats(bench.registry) if usual else ("plain",):
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
                wanted = kernel.layout not in layouts if usual else not layouts
                if wanted and _stores(stored_as, inputs) and match(kernel, query):
                    layouts.add(kernel.layout)
                    label = f"{inputs} to {outputs}{' with bias' if bias else ''} over {kernel.id}"
                    found = examples.facts_at(query) if usual else examples.facts_at(query)[:1]
                    for number, facts in enumerate(found):
                        yield f"{label}{f', facts {number}' if number else ''}", Site(kernel, query, facts)


def _stores(weight_format: str, inputs: int) -> bool:
    return weight_format not in ("int4_group", "int8_group") or inputs % 128 == 0


def _query(op: str, over: Site, **fields: Any) -> OpQuery:
    return OpQuery(op=op, facts=over.facts, linear=over.kernel.id, weight_layout=over.kernel.layout, **fields)


class LinearOp(Op):
    """The op with a weight that the site's kernel prepared; its reference with what that means."""

    def __init__(
        self,
        candidate: Candidate[OpQuery],
        sites: Mapping[str, Site],
        contract: OpContract,
        examples: OpExamples,
        asked: Asked[OpQuery],
    ) -> None:
        bench, site = candidate.bench, sites[asked.label]
        linear: Callable[..., Tensor] = candidate.load(site.kernel.implementation)
        super().__init__(candidate, contract, examples, asked, {"linear": linear}, {"linear": F.linear})
        query, self.kernel = site.query, site.kernel
        self.odd = self.by_row
        self.facts = {**site.facts, "in_features": query.in_features, "out_features": query.out_features}
        weight = self.draw.floats(query.out_features, query.in_features, scale=query.in_features**-0.5)
        stored_as = stored(bench.registry, query.weight_format, weight)
        bias = self.draw.floats(query.out_features) if query.bias else None
        self.bound, self.bound_of_first = None, stored_as.bound or chained(asked.dtype)
        prepare = candidate.load(site.kernel.prepare) if site.kernel.prepare else lambda given: given["weight"]
        weight_here = prepare({name: tensor.to(bench.device) for name, tensor in stored_as.parameters.items()})
        bias_here = None if bias is None else bias.to(bench.device)
        kernel, reference = self.run, self.reference

        def meaning(rows: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
            """Weight and bias in the dtype of the rows."""
            narrow = any(tensor.dtype == asked.dtype for tensor in tensors(rows))
            dtype = asked.dtype if narrow else torch.float32
            return stored_as.meaning.to(dtype), None if bias is None else bias.to(dtype)

        self.run = lambda *rows, **options: kernel(*rows, weight_here, bias_here, **options)
        self.reference = lambda *rows, **options: reference(*rows, *meaning(rows), **options)

    def arguments(self, rows: int, without: str = "") -> tuple[Any, ...]:
        """What comes before the weight, on the host; ``None`` in place of the argument ``without``."""
        made = self.examples.make(self.draw, self.facts, rows)
        names = self.contract.arguments[: len(made)]
        return tuple(None if name == without else value for name, value in zip(names, made, strict=True))


def _agrees(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery], site: Site) -> str:
    op, errors = make(asked), []
    bands = _shared(candidate.spec, site.kernel)
    several = counts(bands, few=not candidate.bench.thorough)
    plain = site.query.weight_format == "plain"
    many = [_MANY] if plain and any(band.start <= _MANY < band.stop for band in bands) else []
    for count in (*several, *many):
        for without in ("", *op.examples.optional):
            rows = op.arguments(count, without)
            given = op.placed(rows)
            with poisoned():
                out = op.run(*given, **op.on_device)
            errors.append(op.check(out, given, rows, f"{count} rows{f', without {without}' if without else ''}"))
    return agreeing(errors)


def _shared(spec: KernelSpec, kernel: KernelSpec) -> tuple[Any, ...]:
    """The bands of a composite are those of its linear kernel, too."""
    return kernel.bands if spec.parts else spec.bands


def _recorded(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery], kernel: KernelSpec) -> str:
    op = make(asked)
    count = counts(_shared(candidate.spec, kernel), few=True)[0]
    first, other = op.arguments(count), op.arguments(count)
    inputs = [first, tuple(new if isinstance(new, Tensor) else kept for kept, new in zip(first, other, strict=True))]
    given = op.placed(inputs[0])

    def load(i: int) -> None:
        for into, values in zip(tensors(given), tensors(inputs[i]), strict=True):
            into.copy_(values)

    def judge(i: int, out: Any) -> float:
        return op.check(out, given, inputs[i], "a replay for other rows")

    run = partial(op.run, *given, **op.on_device)
    return check_recorded(candidate.bench, run, load, judge, 2, portable=is_portable(candidate.spec))

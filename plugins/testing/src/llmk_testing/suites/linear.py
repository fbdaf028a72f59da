"""The suite of linear kernels: prepare and run, compared with a float64 GEMM with the weight that the parameters
represent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from llmk.api import KernelSpec, LinearQuery
from llmk.api.errors import describe
from llmk.api.matching import match
from llmk.reference.tiles import cancelling
from llmk_testing.bench import Bench
from llmk_testing.candidate import Asked, Candidate, agreeing, served_by
from llmk_testing.case import Case, Skip
from llmk_testing.invariance import check_rows
from llmk_testing.queries import linear_queries
from llmk_testing.recording import check_recorded, is_portable
from llmk_testing.rows import counts, none_or_more
from llmk_testing.suites import kernel_costs
from llmk_testing.suites.linear_sums import sum_cases
from llmk_testing.suites.prepared import (
    check_caller,
    check_held,
    check_layers,
    check_prepare,
    first_of_each,
    largest,
    several,
    smallest,
)
from llmk_testing.suites.prepared_linear import PreparedLinear
from llmk_testing.tolerance import Right, check, check_same
from llmk_testing.watch import poisoned
from llmk_testing.weights import Stored, formats, forms

_MANY = 40_001
"""Rows, more than a signed integer of 16 bits can count."""
_OUTPUTS = (66_001, 66_048)
"""Outputs, more than 16 bits count, and of 128 inputs more than kernels may widen at a time; the first is odd."""
_UNEVEN = (528, 96)
"""Numbers of inputs: 33 groups of 16, and 3 of 32."""
_LONG_ROW = 5120
"""Inputs of a table's long rows."""
_LOOKED_UP = 1024
"""Rows of a table that are looked up at once."""
_FEW = 0.1
"""Share of a row's inputs that are not 0, as behind a ReLU."""
_LARGEST = 1e30
"""Of the inputs: float32 holds sums of them with 8-bit weights, before these are scaled, but none of their squares."""


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one linear kernel."""
    candidate = Candidate(spec, bench, linear_queries(formats(bench.registry), served_by(spec, bench)))
    contracts = {
        "takes rows of a wider tensor": _strided,
        "rows don't affect each other": _apart,
        "inputs stay as they are": _inputs,
        "rows of any magnitude are computed": _magnitudes,
        "its tensors are the caller's": _caller,
        "parameters stay as they are when they are prepared": _prepared,
        "layers of one shape are apart": _layers,
    }
    some = several(candidate.served, (lambda query: query.bias, lambda query: query.weight_format))
    yield from candidate.checks(_agrees, contracts, _recorded, _deterministic, some)
    yield from candidate.each("takes any number of rows", _each_number, first_of_each(candidate.served))
    yield from candidate.each("takes many rows", _many, smallest(candidate.served, _sizes))
    yield from candidate.each("takes many outputs", _many_outputs, _vocabularies(candidate))
    yield from candidate.each("a layer holds little more than its parameters", _held, largest(candidate.served, _sizes))
    yield from sum_cases(candidate)
    yield from candidate.each("weights of its layout are those of others that have it", _layout, candidate.served[:2])
    yield from kernel_costs.linear_cases(candidate, PreparedLinear)
    yield from candidate.each("rows of a table are looked up", _looked_up, _tables(candidate))
    first = {asked.query.weight_format: asked for asked in reversed(candidate.served)}
    for stored_as, asked in first.items():
        for form, _ in forms(stored_as, 1, 128, torch.Generator()):
            yield candidate.case(f"takes {form}: {asked.label}", partial(_form, candidate, asked, form))


def _agrees(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """With row counts at the edges of the spec's bands and of tiles."""
    kernel, errors = PreparedLinear(candidate, asked), []
    for count in counts(candidate.spec.bands, thorough=candidate.bench.thorough):
        x = kernel.rows(count)
        with poisoned():
            out = kernel(x.to(kernel.device))
        errors.append(kernel.check(out, x, f"{count} rows"))
    return agreeing(errors)


def _form(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery], form: str) -> str:
    """One of the forms that the format leaves open, with an odd number of outputs, and with inputs that are no whole
    tiles: multiplied, also in float32, in which single numbers show, looked up where the spec serves tables, and
    recorded where it can be."""
    errors = []
    for inputs in (asked.query.in_features, *_UNEVEN):
        query = replace(asked.query, in_features=inputs, out_features=asked.query.out_features - 3)
        random = candidate.bench.random("linear", form)
        made = dict(forms(query.weight_format, query.out_features, inputs, random)).get(form)
        if made and match(candidate.spec, query):
            errors += _of_form(candidate, replace(asked, query=query), made())
    if not errors:
        raise Skip(f"it does not serve {asked.query.out_features - 3} outputs")
    return agreeing(errors)


def _of_form(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery], given: Stored) -> list[float]:
    query, errors = asked.query, list[float]()
    for dtype in {query.dtype: None, "float32": None} if "float32" in candidate.dtypes else (query.dtype,):
        if not match(candidate.spec, replace(query, dtype=dtype)):
            continue
        kernel = PreparedLinear(candidate, replace(asked, query=replace(query, dtype=dtype)), given)
        for count in counts(candidate.spec.bands, few=True):
            x = kernel.rows(count)
            errors.append(kernel.check(kernel(x.to(kernel.device)), x, f"{count} rows in {dtype}"))
        if match(candidate.spec, replace(query, lookup=True)):
            errors += _lookups(kernel)
        if candidate.spec.capture != "none":
            _replayed(candidate, kernel)
    return errors


def _each_number(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """None, and the first of the same rows: kernels have other code for a few, and for whole tiles."""
    numbers = none_or_more(candidate.spec.bands) or [candidate.spec.bands[0].start]
    kernel, errors = PreparedLinear(candidate, asked), []
    x = kernel.rows(numbers[-1])
    placed, right = x.to(kernel.device), kernel.right(x)
    for count in numbers:
        with poisoned():
            out = kernel(placed[:count])
        errors.append(check(out, Right(right[:count], kernel.dtype), f"{count} rows", kernel.bound))
    return agreeing(errors)


def _layout(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """Kernels of one layout share the rows of a site, and the weight that one of them prepared."""
    kernel = PreparedLinear(candidate, asked)
    others = [
        one.spec
        for one in candidate.bench.registry.kernels("linear")
        if one.spec.layout == candidate.spec.layout
        and one.spec.id != candidate.spec.id
        and match(one.spec, asked.query)
    ]
    for other in others:
        multiply: Callable[..., Tensor] = candidate.load(other.implementation)
        count = counts(other.bands, few=True)[0]
        x = kernel.rows(count)
        try:
            out = multiply(x.to(kernel.device), kernel.weights, kernel.placed)
        except Exception as error:
            message = f"{other.id} has the layout {other.layout!r}, too, and can't read the weight: {describe(error)}"
            raise AssertionError(message) from error
        kernel.check(out, x, f"{other.id}, which has the layout {other.layout!r}, too, of the weight prepared here")
    return ", ".join(other.id for other in others) or "no other kernel has it"


def _strided(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    kernel, width = PreparedLinear(candidate, asked), asked.query.in_features
    errors = []
    for count in counts(candidate.spec.bands, few=True):
        wide = kernel.draw(count, width + 24).to(kernel.dtype).to(kernel.device)
        x = wide[:, 8 : 8 + width]
        errors.append(kernel.check(kernel(x), x, f"{count} rows with a stride of {width + 24} elements"))
    return agreeing(errors)


def _apart(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    """Padding may contain anything, which must not affect other rows."""
    kernel = PreparedLinear(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        if count > 1:
            x = kernel.rows(count)
            x[count // 2] = torch.nan
            out = kernel(x.to(kernel.device)).cpu()
            others = [row for row in range(count) if row != count // 2]
            kernel.check(out[others], x[others], f"the other rows of {count}, of which row {count // 2} is NaN,")


def _inputs(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    kernel = PreparedLinear(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        host = kernel.rows(count)
        x = host.to(kernel.device, copy=True)
        out = kernel(x)
        check_same(x, host, "x, which is an input")
        if kernel.bias is not None and kernel.placed is not None:
            check_same(kernel.placed, kernel.bias, "the bias, which is an input")
        assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), "the result lies in x's memory"
        other = kernel.rows(count)
        between = kernel(other.to(kernel.device))
        again = kernel(x)
        kernel.check(out, host, "a result after the kernel was called for other rows")
        kernel.check(between, other, "the result for other rows, after the kernel was called again")
        kernel.check(again, host, "the second call")


def _magnitudes(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """Each row by itself, next to much larger and smaller ones, and to zeros; plain weights likewise. Then all rows
    of a kind."""
    largest = 3.0 if asked.dtype == torch.float16 else 1e6
    query, given = asked.query, None
    random = candidate.bench.random("magnitudes", asked.label)
    if query.weight_format == "plain":
        weight = torch.randn(query.out_features, query.in_features, generator=random) / query.in_features**0.5
        weight *= torch.tensor([1.0, largest, 1 / largest]).repeat(query.out_features)[: query.out_features, None]
        given = Stored({"weight": weight.to(asked.dtype)}, weight.to(asked.dtype).float())
    kernel, errors = PreparedLinear(candidate, asked, given), []
    factors = torch.tensor([1.0, 1e3, 0.0, 1e-3]) if largest < 10 else torch.tensor([1.0, largest, 0.0, 1 / largest])
    for count in counts(candidate.spec.bands, few=True):
        x = (kernel.rows(count).float() * factors.repeat(count)[:count, None]).to(kernel.dtype)
        out, right = kernel(x).cpu(), kernel.right(x)
        for row in range(min(count, 8)):
            for at in range(3):
                what = f"row {row} of {count}, times {factors[row % 4]:g}, outputs {at}, {at + 3}, …"
                expected = Right(right[row, at::3], kernel.dtype)
                errors.append(check(out[row, at::3], expected, what, kernel.bound))
        errors += _alike(kernel, count)
    return agreeing(errors)


def _alike(kernel: PreparedLinear, count: int) -> list[float]:
    """All rows of a kind, as of a step that warms up, behind a ReLU, or of a model that has diverged."""
    x, most = kernel.rows(count).float(), min(_LARGEST, torch.finfo(kernel.dtype).max / 8)
    alone = torch.zeros_like(x)
    alone[:, -1] = x[:, -1]
    # Which inputs of a row are 0 says nothing of the others', whichever of them a kernel looks at.
    few = torch.where(torch.rand(x.shape, generator=kernel.random) < _FEW, x, 0.0)
    kinds = {
        "zeros": x * 0,
        "zeros but for the last input": alone,
        "few inputs each": few,
        "few inputs each, the first of them zeros": torch.cat([few[:1] * 0, few[1:]]),
        "zeros, the first of them not": torch.cat([x[:1], x[1:] * 0]),
        f"numbers up to {most:.0e}": x / x.abs().max() * most,
    }
    errors = []
    for what, rows in kinds.items():
        given = rows.to(kernel.dtype)
        errors.append(kernel.check(kernel(given), given, f"{count} rows of {what}"))
    return errors


def _count(candidate: Candidate[LinearQuery]) -> int:
    return counts(candidate.spec.bands, few=True)[-1]


def _caller(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    check_caller(PreparedLinear(candidate, asked), _count(candidate), candidate.bench.device)


def _prepared(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    check_prepare(PreparedLinear(candidate, asked), _count(candidate))


def _layers(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    check_layers(lambda number: PreparedLinear(candidate, asked, number=number), _count(candidate))


def _held(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    return check_held(lambda number: PreparedLinear(candidate, asked, number=number), candidate.spec.bands)


def _many(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """More than 16 bits count."""
    count = max(min(_MANY, band.stop - 1) for band in candidate.spec.bands)
    kernel = PreparedLinear(candidate, asked)
    x = kernel.rows(count)
    return agreeing([kernel.check(kernel(x), x, f"{count} rows")])


def _vocabularies(candidate: Candidate[LinearQuery]) -> list[Asked[LinearQuery]]:
    """Of each weight format, the first query with many outputs that is served, with a bias if any is."""
    found = []
    for asked in first_of_each(candidate.served):
        shapes = ((outputs, bias) for bias in (True, False) for outputs in _OUTPUTS)
        for outputs, bias in shapes:
            query = replace(asked.query, in_features=128, out_features=outputs, bias=bias)
            if candidate.serves(query):
                label = f"128 to {outputs}{' with bias' if bias else ''}, {query.weight_format}, {query.dtype}"
                found.append(Asked(label, query))
                break
    return found


def _many_outputs(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """As a head over a large vocabulary has them: kernels compute them in parts, of which the last is not whole."""
    kernel, errors = PreparedLinear(candidate, asked), []
    for count in counts(candidate.spec.bands, few=True)[:2]:
        x = kernel.rows(count)
        with poisoned():
            out = kernel(x)
        errors.append(kernel.check(out, x, f"{count} rows"))
    if match(candidate.spec, replace(kernel.query, lookup=True)) and kernel.query.weight_format != "plain":
        errors += _lookups(kernel)
    return agreeing(errors)


def _sizes(query: LinearQuery) -> int:
    return query.in_features * query.out_features


def _tables(candidate: Candidate[LinearQuery]) -> list[Asked[LinearQuery]]:
    """The first query of each format that is served if the weight is an embedding's table, too, and one with rows as
    long as those of large models."""
    found: dict[tuple[str, bool], Asked[LinearQuery]] = {}
    for asked in candidate.served:
        table = replace(asked.query, lookup=True)
        long = replace(table, in_features=_LONG_ROW, out_features=64)
        for query, label in ((table, asked.label), (long, f"{_LONG_ROW} to 64, {table.weight_format}, {table.dtype}")):
            if table.weight_format != "plain" and match(candidate.spec, query):
                found.setdefault((table.weight_format, query is long), Asked(label, query))
    return [*found.values()]


def _looked_up(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    return agreeing(_lookups(PreparedLinear(candidate, asked)))


def _lookups(kernel: PreparedLinear) -> list[float]:
    """Any rows of the weight, in any order, more than once, in the engine's dtype."""
    errors, last = [], kernel.query.out_features - 1
    for index in ([0], [last, 0, last, 1], [*range(last, max(-1, last - _LOOKED_UP), -1)]):
        rows = kernel.weights.rows(torch.tensor(index, device=kernel.device), kernel.dtype)
        right = Right(kernel.stored.meaning[index], kernel.dtype)
        errors.append(check(rows, right, f"{len(index)} rows of the table"))
    return errors


def _recorded(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    return _replayed(candidate, PreparedLinear(candidate, asked))


def _replayed(candidate: Candidate[LinearQuery], kernel: PreparedLinear) -> str:
    count = next(iter(counts(candidate.spec.bands, few=True)))
    inputs = [kernel.rows(count) for _ in range(2)]
    x = inputs[0].to(kernel.device, copy=True)

    def load(i: int) -> None:
        x.copy_(inputs[i])

    def judge(i: int, out: Tensor) -> float:
        return kernel.check(out, inputs[i], "a replay for other rows")

    return check_recorded(
        candidate.bench, lambda: kernel(x), load, judge, len(inputs), portable=is_portable(candidate.spec)
    )


def _deterministic(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    """With rows whose sums cancel, which reveal the order of summation; with quantized weights, random rows."""
    query = asked.query
    kernel = PreparedLinear(candidate, asked)
    rows, weight = cancelling(70, (query.out_features, query.in_features), kernel.dtype, candidate.bench.seed)
    if query.weight_format == "plain":
        kernel.weights = kernel.prepare({"weight": weight.to(kernel.device)})
    check_rows(kernel, rows.to(kernel.device), trials=12, seed=candidate.bench.seed)

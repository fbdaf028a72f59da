"""Linear kernels: prepared, then run, against float64 products with what the parameters mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from llmk.api import KernelSpec, LinearQuery
from llmk.reference.tiles import cancelling
from llmk_testing.bench import Bench
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case
from llmk_testing.invariance import check_rows
from llmk_testing.queries import linear_queries
from llmk_testing.recording import check_recorded
from llmk_testing.rows import counts
from llmk_testing.tolerance import Bound, Right, check, check_same
from llmk_testing.watch import poisoned
from llmk_testing.weights import Stored, formats, stored


class Product:
    """A kernel with a random weight, which it prepared, and inputs."""

    def __init__(self, candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
        spec, bench, query = candidate.spec, candidate.bench, asked.query
        self.query, self.dtype, self.device = query, asked.dtype, bench.device
        self.random = bench.random("linear", asked.label)
        weight = self.draw(query.out_features, query.in_features) / query.in_features**0.5
        self.stored: Stored = stored(bench.registry, query.weight_format, weight.to(self.dtype))
        self.bias = self.draw(query.out_features).to(self.dtype) if query.bias else None
        self.kernel: Callable[..., Tensor] = candidate.load(spec.implementation)
        on_device = {name: tensor.to(bench.device) for name, tensor in self.stored.parameters.items()}
        prepare = candidate.load(spec.prepare) if spec.prepare else lambda parameters: parameters["weight"]
        self.weight = prepare(on_device)

    def draw(self, *shape: int) -> Tensor:
        """Random numbers, float32 on the host."""
        return torch.randn(shape, generator=self.random)

    def rows(self, count: int) -> Tensor:
        """Inputs ``[count, in_features]`` on the host."""
        return self.draw(count, self.query.in_features).to(self.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(self.device)
        return self.kernel(x, self.weight, bias)

    def right(self, x: Tensor) -> Tensor:
        """Float64 on the host."""
        out = x.cpu().double() @ self.stored.meaning.double().T
        return out if self.bias is None else out + self.bias.double()

    def check(self, out: Tensor, x: Tensor, what: str) -> float:
        """Compares."""
        return check(out, Right(self.right(x), self.dtype), what, self.bound)

    @property
    def bound(self) -> Bound | None:
        """Where it is not that of the dtype."""
        return self.stored.bound


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one linear kernel."""
    candidate = Candidate(spec, bench, linear_queries(formats(bench.registry)))
    contracts = {
        "takes rows of a wider tensor": _strided,
        "a row's result depends on that row": _apart,
        "inputs stay as they are": _inputs,
    }
    yield from candidate.checks(_agrees, contracts, _recorded, _deterministic)


def _agrees(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    """At the edges of the spec's bands, and of tiles."""
    product, errors = Product(candidate, asked), []
    for count in counts(candidate.spec.bands, thorough=candidate.bench.thorough):
        x = product.rows(count)
        with poisoned():
            out = product(x.to(product.device))
        errors.append(product.check(out, x, f"the product of {count} rows"))
    return agreeing(errors)


def _strided(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    product, width = Product(candidate, asked), asked.query.in_features
    errors = []
    for count in counts(candidate.spec.bands, few=True):
        wide = product.draw(count, width + 24).to(product.dtype).to(product.device)
        x = wide[:, 8 : 8 + width]
        errors.append(product.check(product(x), x, f"the product of {count} rows that lie {width + 24} elements apart"))
    return agreeing(errors)


def _apart(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    """What padding holds may be anything, and stays in its row."""
    product = Product(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        if count > 1:
            x = product.rows(count)
            x[count // 2] = torch.nan
            out = product(x.to(product.device)).cpu()
            others = [row for row in range(count) if row != count // 2]
            product.check(out[others], x[others], f"the other rows of {count}, of which row {count // 2} is NaN,")


def _inputs(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    product = Product(candidate, asked)
    for count in counts(candidate.spec.bands, few=True):
        host = product.rows(count)
        x = host.to(product.device, copy=True)
        out = product(x)
        check_same(x, host, "x, which is an input")
        assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), "the result lies in x's memory"
        again = product(x)
        product.check(out, host, "a result after the kernel was called again")
        product.check(again, host, "the second call")


def _recorded(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> str:
    product = Product(candidate, asked)
    count = next(iter(counts(candidate.spec.bands, few=True)))
    inputs = [product.rows(count) for _ in range(2)]
    x = inputs[0].to(product.device, copy=True)
    # What doesn't change from call to call is on the device before.
    bias = None if product.bias is None else product.bias.to(product.device)

    def load(i: int) -> None:
        x.copy_(inputs[i])

    def judge(i: int, out: Tensor) -> float:
        return product.check(out, inputs[i], "a replay for other rows")

    return check_recorded(candidate.bench, lambda: product.kernel(x, product.weight, bias), load, judge, len(inputs))


def _deterministic(candidate: Candidate[LinearQuery], asked: Asked[LinearQuery]) -> None:
    """On rows whose sums cancel, where the order of adding shows. With quantized weights, on random ones."""
    query = asked.query
    product = Product(candidate, asked)
    rows, weight = cancelling(70, (query.out_features, query.in_features), product.dtype, candidate.bench.seed)
    if query.weight_format == "plain":
        prepare = candidate.load(candidate.spec.prepare) if candidate.spec.prepare else lambda given: given["weight"]
        product.weight = prepare({"weight": weight.to(product.device)})
    check_rows(product, rows.to(product.device), trials=12, seed=candidate.bench.seed)

"""A linear kernel with a prepared weight, and what its results are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from llmk.api import LinearQuery
from llmk_testing.candidate import Asked, Candidate
from llmk_testing.tolerance import Bound, Right, check
from llmk_testing.weights import Stored, stored


class PreparedLinear:
    """A kernel with a random prepared weight, and its inputs."""

    def __init__(
        self, candidate: Candidate[LinearQuery], asked: Asked[LinearQuery], given: Stored | None = None, number: int = 0
    ) -> None:
        spec, bench, query = candidate.spec, candidate.bench, asked.query
        self.query, self.dtype, self.device = query, asked.dtype, bench.device
        self.random = bench.random("linear", asked.label, number)
        weight = self.draw(query.out_features, query.in_features) / query.in_features**0.5
        self.stored: Stored = given or stored(bench.registry, query.weight_format, weight.to(self.dtype))
        self.bias = self.draw(query.out_features).to(self.dtype) if query.bias else None
        self.placed = None if self.bias is None else self.bias.to(bench.device, copy=True)
        self.kernel: Callable[..., Tensor] = candidate.load(spec.implementation)
        self.parameters = {name: tensor.to(bench.device) for name, tensor in self.stored.parameters.items()}
        self.prepare = candidate.load(spec.prepare) if spec.prepare else lambda parameters: parameters["weight"]
        self.weights = self.prepare({name: tensor.clone() for name, tensor in self.parameters.items()})

    def draw(self, *shape: int) -> Tensor:
        """Random numbers, float32 on the host."""
        return torch.randn(shape, generator=self.random)

    def rows(self, count: int) -> Tensor:
        """Inputs ``[count, in_features]`` on the host."""
        return self.draw(count, self.query.in_features).to(self.dtype)

    def inputs(self, count: int) -> tuple[Tensor, ...]:
        """As :class:`~llmk_testing.suites.prepared.Layer` has them."""
        return (self.rows(count),)

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernel(x.to(self.device), self.weights, self.placed)

    def right(self, x: Tensor) -> Tensor:
        """The expected result, float64 on the host."""
        out = x.cpu().double() @ self.stored.meaning.double().T
        return out if self.bias is None else out + self.bias.double()

    def check(self, out: Tensor, x: Tensor, what: str) -> float:
        """Compares the result with the expected one."""
        return check(out, Right(self.right(x), self.dtype), what, self.bound)

    @property
    def bound(self) -> Bound | None:
        """The weight format's tolerance; ``None``: that of the dtype."""
        return self.stored.bound

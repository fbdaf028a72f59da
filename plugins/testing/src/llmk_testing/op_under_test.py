"""An op that is tested: its kernel, its reference, and arguments for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from llmk.api import OpContract, OpQuery
from llmk.reference.op_examples import Draw, OpExamples
from llmk_testing.binding import bind, oracle
from llmk_testing.candidate import Asked, Candidate
from llmk_testing.tolerance import Bound, Right, chained, check, check_same, equal, looser
from llmk_testing.trees import mapped, mapped_values, tensors

HALVES = (torch.bfloat16, torch.float16)

Make = Callable[[Asked[OpQuery]], "Op"]


class Op:
    """An op that takes tensors alone, its reference, and arguments.

    ``bound``: that of comparisons, ``None`` for the dtype's; ``bound_of_first``: that of the first result.
    ``parts`` and ``right`` are what an op over sites gets of these, and what its reference gets.
    ``odd``: places of the arguments whose rows may be zeros, constants and of large numbers.
    """

    bound: Bound | None
    bound_of_first: Bound | None

    def __init__(
        self,
        candidate: Candidate[OpQuery],
        contract: OpContract,
        examples: OpExamples,
        asked: Asked[OpQuery],
        parts: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        right: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        bench, spec = candidate.bench, candidate.spec
        self.contract, self.examples = contract, examples
        self.by_row, self.wide = contract.positions(examples.by_row), contract.positions(examples.wide)
        self.leading = contract.positions(examples.leading)
        self.strided, self.float32 = contract.positions(examples.strided), contract.positions(examples.float32)
        self.odd = self.leading
        self.facts, self.dtype, self.device = asked.query.facts, asked.dtype, bench.device
        self.draw = Draw(bench.random("op", asked.label), asked.dtype)
        self.run: Callable[..., Any] = bind(bench.registry, spec, parts)
        self.reference: Callable[..., Any] = bind(bench.registry, oracle(bench.registry, spec.op), right)
        self.bound = chained(asked.dtype) if examples.chained else None
        self.bound_of_first = self.bound
        self.options = examples.options_at(self.draw, self.facts)
        self.on_device = mapped_values(lambda tensor: tensor.to(bench.device), self.options)

    def arguments(self, rows: int, without: str = "") -> tuple[Any, ...]:
        """On the host; ``None`` in place of the argument ``without``."""
        made = self.examples.make(self.draw, self.facts, rows)
        named = zip(self.contract.arguments, made, strict=True)
        return tuple(None if name == without else value for name, value in named)

    def placed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """On the device; parts of wider rows as such."""
        moved: list[Any] = []
        for place, argument in enumerate(arguments):
            if place in self.wide and argument is not None:
                shape = (argument.shape[0], argument.shape[1] + 3, *argument.shape[2:])
                wide = torch.full(shape, torch.nan, dtype=argument.dtype, device=self.device)[:, 2:-1]
                moved.append(wide.copy_(argument))
            else:
                moved.append(mapped(lambda tensor: tensor.to(self.device, copy=True), argument))
        return tuple(moved)

    def check(self, result: Any, after: tuple[Any, ...], arguments: tuple[Any, ...], what: str) -> float:
        """Compares the result and what became of the arguments, of which those that the reference leaves alone must be
        the same bit for bit."""
        documented, narrow = self.by_reference(arguments)
        values, wide = self.by_reference(mapped(widened, arguments))
        errors = [0.0]
        assert (result is None) == (documented is None), f"{what}: {result!r} was returned"
        found, dtypes, right = tensors(result), tensors(documented), tensors(values)
        assert len(found) == len(right), f"{what}: {len(found)} tensors came, {len(right)} were expected"
        names = getattr(documented, "_fields", [f"result {i}" for i in range(len(found))])
        for name, actual, like, expected in zip(names, found, dtypes, right, strict=True):
            bound = self.bound if len(errors) > 1 else self.bound_of_first
            errors.append(check(actual, Right(expected, like.dtype), f"{what}: {name}", bound))
        places = zip(tensors(after), tensors(arguments), tensors(narrow), tensors(wide), strict=True)
        for place, (actual, before, changed, expected) in enumerate(places):
            name = f"{what}: tensor {place} of the arguments"
            if equal(before, changed):
                check_same(actual, before, f"{name}, an input")
            else:
                own = looser(self.bound, changed.dtype) if self.bound else None
                errors.append(check(actual, Right(expected, changed.dtype), f"{name}, written in place", own))
        return max(errors)

    def by_reference(self, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """What the reference returns, and what becomes of the arguments, which are copied."""
        own = mapped(torch.clone, arguments)
        return self.reference(*own, **self.options), own


def widened(tensor: Tensor) -> Tensor:
    """A tensor of 16 bits in float32, others as they are."""
    return tensor.float() if tensor.dtype in HALVES else tensor

"""Kernels of ops against the references of these, by their contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import KernelSpec, OpContract, OpQuery
from llmk.reference.op_examples import Draw, OpExamples, load_examples
from llmk_testing import attention_ops, linear_ops
from llmk_testing.bench import Bench
from llmk_testing.binding import bind, oracle
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case, Skip
from llmk_testing.recording import check_recorded
from llmk_testing.rows import counts
from llmk_testing.suites import kernel_costs, op_calls
from llmk_testing.tolerance import Right, chained, check, check_same, equal, looser
from llmk_testing.trees import mapped, mapped_values, tensors
from llmk_testing.watch import poisoned

_HALVES = (torch.bfloat16, torch.float16)
_SCALES = (1e-3, 100.0)
_ENOUGH, _LEAN = 64, 0.15
"""Elements of a row, and the share of the dtype's precision that their errors may lean to one side: four standard
deviations of what rounding twice gives."""

Make = Callable[[Asked[OpQuery]], "Op"]


class Op:
    """An op that takes tensors alone, its reference, and arguments."""

    def __init__(
        self, candidate: Candidate[OpQuery], contract: OpContract, examples: OpExamples, asked: Asked[OpQuery]
    ) -> None:
        bench, spec = candidate.bench, candidate.spec
        self.contract, self.examples = contract, examples
        self.by_row, self.wide = contract.positions(examples.by_row), contract.positions(examples.wide)
        self.leading = contract.positions(examples.leading)
        self.facts, self.dtype, self.device = asked.query.facts, asked.dtype, bench.device
        self.draw = Draw(bench.random("op", asked.label), asked.dtype)
        self.run: Callable[..., Any] = bind(bench.registry, spec, {})
        self.reference: Callable[..., Any] = bind(bench.registry, oracle(bench.registry, spec.op), {})
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
        values, wide = self.by_reference(mapped(_widened, arguments))
        errors, bound = [0.0], chained(self.dtype) if self.examples.chained else None
        assert (result is None) == (documented is None), f"{what}: {result!r} was returned"
        found, dtypes, right = tensors(result), tensors(documented), tensors(values)
        assert len(found) == len(right), f"{what}: {len(found)} tensors came, {len(right)} were expected"
        names = getattr(documented, "_fields", [f"result {i}" for i in range(len(found))])
        for name, actual, like, expected in zip(names, found, dtypes, right, strict=True):
            errors.append(check(actual, Right(expected, like.dtype), f"{what}: {name}", bound))
        places = zip(tensors(after), tensors(arguments), tensors(narrow), tensors(wide), strict=True)
        for place, (actual, before, changed, expected) in enumerate(places):
            name = f"{what}: tensor {place} of the arguments"
            if equal(before, changed):
                check_same(actual, before, f"{name}, an input")
            else:
                own = looser(bound, changed.dtype) if bound else None
                errors.append(check(actual, Right(expected, changed.dtype), f"{name}, written in place", own))
        return max(errors)

    def by_reference(self, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """What the reference returns, and what becomes of the arguments, which are copied."""
        own = mapped(torch.clone, arguments)
        return self.reference(*own, **self.options), own


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one kernel of an op."""
    contract = bench.registry.contracts.get(spec.op)
    kinds = sorted(bench.registry.site_kinds(spec.op))
    if contract is None or not contract.examples or len(kinds) > 1:
        yield Case(spec.id, spec.kind, "agrees with the reference", partial(_untested, spec, contract, kinds))
        return
    examples = load_examples(contract)
    if kinds:
        yield from _OVER[kinds[0]](spec, bench, contract, examples)
        return
    wanted = {
        ", ".join(f"{key} {value}" for key, value in facts.items()) or "any": partial(OpQuery, op=spec.op, facts=facts)
        for facts in examples.facts_at()
    }
    candidate = Candidate(spec, bench, wanted)
    make = partial(Op, candidate, contract, examples)
    yield from candidate.honesty()
    for asked in candidate.served:
        yield candidate.case(f"agrees with the reference: {asked.label}", partial(_agrees, candidate, make, asked))
    yield from op_calls.cases(candidate, make, examples.leading)
    yield from kernel_costs.op_cases(candidate, make, by_row=bool(examples.by_row))
    for asked in candidate.served if examples.by_row else ():
        for scale in _SCALES:
            name = f"agrees with the reference on numbers {scale:g} times as large: {asked.label}"
            yield candidate.case(name, partial(_scaled, candidate, make, asked, scale))
        if asked.dtype in _HALVES:
            name = f"errors lean to no side: {asked.label}"
            yield candidate.case(name, partial(_unbiased, candidate, make, asked))
    for asked in candidate.served[:2]:
        if spec.capture != "none":
            name = f"can be recorded and replayed: {asked.label}"
            yield candidate.case(name, partial(_recorded, candidate, make, asked))
        if examples.by_row:
            yield candidate.case(
                f"rows don't affect each other: {asked.label}", partial(_apart, candidate, make, asked)
            )
    if spec.deterministic and examples.by_row:
        for asked in candidate.deterministic:
            yield candidate.case(f"rows don't depend on the batch: {asked.label}", partial(_deterministic, make, asked))


_OVER = {"attention": attention_ops.cases, "linear": linear_ops.cases}
"""The cases of ops over sites, by the kind of the sites."""


def _untested(spec: KernelSpec, contract: OpContract | None, kinds: list[str]) -> None:
    if contract is None:
        raise Skip(f"no installed wheel declares the op {spec.op!r} (llmk.api.OpContract)")
    if not contract.examples:
        raise Skip(f"the contract of the op {spec.op!r} names no examples to test it with")
    raise Skip(f"the op {spec.op!r} has parts of {' and '.join(kinds)} sites; the kit tests ops over sites of one kind")


def _agrees(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    op, errors = make(asked), []
    for rows in counts(candidate.spec.bands, few=not candidate.bench.thorough):
        for without in ("", *op.examples.optional):
            arguments = op.arguments(rows, without)
            given = op.placed(arguments)
            with poisoned():
                result = op.run(*given, **op.on_device)
            what = f"{rows} rows{f', without {without}' if without else ''}"
            errors.append(op.check(result, given, arguments, what))
    return agreeing(errors)


def _scaled(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery], scale: float) -> str:
    """Rows of small and of large numbers: constants that are added show in the first, overflows in the second. A number
    for each row, such as a temperature, is a parameter and stays."""
    op = make(asked)
    arguments = list(op.arguments(min(33, counts(candidate.spec.bands)[-1])))
    for place in op.by_row:
        if arguments[place].is_floating_point() and arguments[place].dim() > 1:
            arguments[place] = arguments[place] * scale
    given = tuple(arguments)
    narrow = [result for result in tensors(op.by_reference(given)[0]) if result.is_floating_point()]
    ruled_out = float("-inf")  # what masks write
    if not all(bool((result.isfinite() | (result == ruled_out)).all()) for result in narrow):
        raise Skip("the reference overflows, too")
    placed = op.placed(given)
    return agreeing([op.check(op.run(*placed, **op.on_device), placed, given, f"numbers {scale:g} times as large")])


def _unbiased(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    """An intermediate number of a row that is rounded to 16 bits shifts the whole row to or from zero, which the sum of
    its errors shows: it may be no larger than a share of the dtype's precision, or than twice the reference's own."""
    op, unit = make(asked), torch.finfo(asked.dtype).eps
    arguments = op.arguments(min(65, counts(candidate.spec.bands)[-1]))
    wide = tensors(op.by_reference(mapped(_widened, arguments))[0])
    worst = 0.0
    for found, own, right in zip(
        tensors(op.run(*op.placed(arguments), **op.on_device)),
        tensors(op.by_reference(arguments)[0]),
        wide,
        strict=True,
    ):
        if found.dtype == asked.dtype and found.dim() == 2 and found.shape[1] >= _ENOUGH:
            lean, usual = (_lean(each.cpu(), right) for each in (found, own))
            worst = max(worst, lean / unit)
            limit = max(_LEAN * unit, 2 * usual)
            assert lean <= limit, f"the errors of a row are {lean:.1e} on average, {limit:.1e} at most"
    return f"{worst:.2f} of the precision"


def _lean(found: Tensor, right: Tensor) -> float:
    """By how much the numbers of a row are too large or too small, as a share of their sum; the most of all rows. A
    number near zero, which sums may cancel to, counts by its size."""
    wide = right.double()
    error = (found.double() - wide) * wide.sign()
    return float((error.sum(1) / wide.abs().sum(1)).nan_to_num().abs().max())


def _apart(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> None:
    """What floating-point rows of padding hold may be anything, and stays in its row."""
    op = make(asked)
    for rows in counts(candidate.spec.bands, few=True):
        arguments = op.arguments(rows)
        row = rows // 2
        spoilt = mapped(torch.clone, arguments)
        for place in op.by_row:
            if rows > 1 and spoilt[place].is_floating_point():
                spoilt[place][row] = torch.nan
        whole, other = (tensors(op.run(*op.placed(given), **op.on_device)) for given in (arguments, spoilt))
        kept = [i for i in range(rows) if i != row]
        for i, (expected, actual) in enumerate(zip(whole, other, strict=True)):
            right = Right(expected.cpu()[kept], expected.dtype)
            check(actual[kept], right, f"result {i}: the other rows of {rows}, of which row {row} is NaN")


def _recorded(candidate: Candidate[OpQuery], make: Make, asked: Asked[OpQuery]) -> str:
    """Of equal shapes and host values; what is written in place is put back before each replay."""
    op = make(asked)
    rows = counts(candidate.spec.bands, few=True)[-1]
    first = op.arguments(rows)
    others = [first, mapped(lambda tensor: _shuffled(op, tensor), first)] if op.by_row else [first]
    given = op.placed(first)

    def load(i: int) -> None:
        for into, values in zip(tensors(given), tensors(others[i]), strict=True):
            into.copy_(values)

    def judge(i: int, result: Any) -> float:
        return op.check(result, given, others[i], "a replay for other rows" if i else "a recorded call")

    return check_recorded(candidate.bench, lambda: op.run(*given, **op.on_device), load, judge, len(others))


def _shuffled(op: Op, tensor: Tensor) -> Tensor:
    return tensor[op.draw.order(tensor.shape[0])] if tensor.dim() else tensor


def _deterministic(make: Make, asked: Asked[OpQuery]) -> None:
    op = make(asked)
    arguments = op.arguments(70)
    whole = tensors(op.run(*op.placed(arguments), **op.on_device))
    for count in (1, 2, 3, 17, 69):
        rows = op.draw.order(70)[:count]
        some = tuple(value[rows] if i in op.by_row else value for i, value in enumerate(arguments))
        for i, part in enumerate(tensors(op.run(*op.placed(some), **op.on_device))):
            check_same(part, whole[i][rows.to(part.device)], f"result {i}: rows {rows.tolist()} of 70 as a batch")


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor

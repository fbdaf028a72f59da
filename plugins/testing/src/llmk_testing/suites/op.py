"""Ops against what the reference documents under their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import KernelSpec, OpQuery
from llmk.planning.candidates import examples_of
from llmk.reference.op_examples import Draw, OpExamples, load_examples
from llmk_testing import attention_ops, product_ops
from llmk_testing.bench import Bench
from llmk_testing.binding import bind, oracle
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case, Skip
from llmk_testing.inputs import INPUTS, mapped, tensors
from llmk_testing.recording import check_recorded
from llmk_testing.rows import counts
from llmk_testing.tolerance import Right, chained, check, check_same
from llmk_testing.watch import poisoned

_HALVES = (torch.bfloat16, torch.float16)


class Op:
    """An op that takes tensors alone, its reference, and arguments."""

    def __init__(self, candidate: Candidate[OpQuery], asked: Asked[OpQuery]) -> None:
        bench, spec = candidate.bench, candidate.spec
        inputs = known(spec, bench)
        assert inputs is not None, f"cases() makes no case of the op {spec.op!r} without inputs"
        self.inputs = inputs
        self.facts, self.dtype, self.device = asked.query.facts, asked.dtype, bench.device
        self.draw = Draw(bench.random("op", asked.label), asked.dtype)
        self.run: Callable[..., Any] = bind(bench.registry, spec, {})
        self.reference: Callable[..., Any] = bind(bench.registry, oracle(bench.registry, spec.op), {})

    def arguments(self, rows: int) -> tuple[Any, ...]:
        """On the host."""
        return self.inputs.make(self.draw, self.facts, rows)

    def placed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """On the device; parts of wider rows as such."""
        moved: list[Any] = []
        for place, argument in enumerate(arguments):
            if place in self.inputs.wide:
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
        errors, bound = [0.0], chained(self.dtype) if self.inputs.chained else None
        assert (result is None) == (documented is None), f"{what}: {result!r} was returned"
        found, dtypes, right = tensors(result), tensors(documented), tensors(values)
        assert len(found) == len(right), f"{what}: {len(found)} tensors came, {len(right)} were expected"
        names = getattr(documented, "_fields", [f"result {i}" for i in range(len(found))])
        for name, actual, like, expected in zip(names, found, dtypes, right, strict=True):
            errors.append(check(actual, Right(expected, like.dtype), f"{what}: {name}", bound))
        places = zip(tensors(after), tensors(arguments), tensors(narrow), tensors(wide), strict=True)
        for place, (actual, before, changed, expected) in enumerate(places):
            name = f"{what}: tensor {place} of the arguments"
            if _equal(before, changed):
                check_same(actual, before, f"{name}, an input")
            else:
                errors.append(check(actual, Right(expected, changed.dtype), f"{name}, written in place", bound))
        return max(errors)

    def by_reference(self, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """What the reference returns, and what becomes of the arguments, which are copied."""
        own = mapped(torch.clone, arguments)
        return self.reference(*own, **self.inputs.options), own


def cases(spec: KernelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one op."""
    if spec.op in attention_ops.OPS:
        yield from attention_ops.cases(spec, bench)
        return
    if spec.op in product_ops.OPS:
        yield from product_ops.cases(spec, bench)
        return
    inputs = known(spec, bench)
    if inputs is None:
        yield Case(spec.id, spec.kind, "agrees with the reference", partial(_unknown, spec))
        return
    wanted = {
        ", ".join(f"{key} {value}" for key, value in facts.items()) or "any": partial(OpQuery, op=spec.op, facts=facts)
        for facts in inputs.facts
    }
    candidate = Candidate(spec, bench, wanted)
    yield from candidate.honesty()
    for asked in candidate.served[:1]:
        if spec.op not in INPUTS:
            yield candidate.case("its examples are true of the reference", partial(_examples_hold, candidate, asked))
    for asked in candidate.served:
        yield candidate.case(f"agrees with the reference: {asked.label}", partial(_agrees, candidate, asked))
    for asked in candidate.served[:2]:
        if spec.capture != "none":
            name = f"can be recorded and replayed: {asked.label}"
            yield candidate.case(name, partial(_recorded, candidate, asked))
        if inputs.by_row:
            yield candidate.case(f"rows don't affect each other: {asked.label}", partial(_apart, candidate, asked))
    if spec.deterministic and inputs.by_row:
        for asked in candidate.deterministic:
            name = f"rows don't depend on the batch: {asked.label}"
            yield candidate.case(name, partial(_deterministic, candidate, asked))


def known(spec: KernelSpec, bench: Bench) -> OpExamples | None:
    """What an op is tried on: known here, or named by a kernel of the op, if it is not the core's."""
    kernels = (kernel.spec for kernel in bench.registry.kernels("op"))
    return INPUTS.get(spec.op) or load_examples(examples_of(spec.op, (spec, *kernels)))


def _unknown(spec: KernelSpec) -> None:
    raise Skip(
        f"no inputs are known for the op {spec.op!r}: KernelSpec.examples of its reference names none"
        " (llmk.reference.op_examples.OpExamples)"
    )


def _examples_hold(candidate: Candidate[OpQuery], asked: Asked[OpQuery]) -> None:
    """They are alike for equal draws, as kernels that are measured take turns with them, and name what is changed."""
    one, other = (Op(candidate, asked).arguments(5) for _ in range(2))
    for place, (first, second) in enumerate(zip(tensors(one), tensors(other), strict=True)):
        check_same(second, first, f"tensor {place} of the arguments, made of the same draw twice")
    op = Op(candidate, asked)
    _, after = op.by_reference(one)
    pairs = enumerate(zip(one, after, strict=True))
    changed = [i for i, (a, b) in pairs if not all(map(_equal, tensors(a), tensors(b)))]
    named = sorted(op.inputs.changed)
    assert changed == named, f"the reference changes the arguments at {changed}, the examples say {named}"
    for i in op.inputs.by_row:
        assert len(one[i]) == 5, f"argument {i} is by_row, but has {len(one[i])} rows where 5 were asked for"


def _agrees(candidate: Candidate[OpQuery], asked: Asked[OpQuery]) -> str:
    op, errors = Op(candidate, asked), []
    for rows in counts(candidate.spec.bands, few=not candidate.bench.thorough):
        arguments = op.arguments(rows)
        given = op.placed(arguments)
        with poisoned():
            result = op.run(*given, **op.inputs.options)
        errors.append(op.check(result, given, arguments, f"{rows} rows"))
    return agreeing(errors)


def _apart(candidate: Candidate[OpQuery], asked: Asked[OpQuery]) -> None:
    """What floating-point rows of padding hold may be anything, and stays in its row."""
    op = Op(candidate, asked)
    for rows in counts(candidate.spec.bands, few=True):
        arguments = op.arguments(rows)
        row = rows // 2
        spoilt = mapped(torch.clone, arguments)
        for place in op.inputs.by_row:
            if rows > 1 and spoilt[place].is_floating_point():
                spoilt[place][row] = torch.nan
        whole, other = (tensors(op.run(*op.placed(given), **op.inputs.options)) for given in (arguments, spoilt))
        kept = [i for i in range(rows) if i != row]
        for i, (expected, actual) in enumerate(zip(whole, other, strict=True)):
            right = Right(expected.cpu()[kept], expected.dtype)
            check(actual[kept], right, f"result {i}: the other rows of {rows}, of which row {row} is NaN")


def _recorded(candidate: Candidate[OpQuery], asked: Asked[OpQuery]) -> str:
    """Of equal shapes and host values; what is written in place is put back before each replay."""
    op = Op(candidate, asked)
    rows = counts(candidate.spec.bands, few=True)[-1]
    first = op.arguments(rows)
    others = [first, mapped(lambda tensor: _shuffled(op, tensor), first)] if op.inputs.by_row else [first]
    given = op.placed(first)

    def load(i: int) -> None:
        for into, values in zip(tensors(given), tensors(others[i]), strict=True):
            into.copy_(values)

    def judge(i: int, result: Any) -> float:
        return op.check(result, given, others[i], "a replay for other rows" if i else "a recorded call")

    return check_recorded(candidate.bench, lambda: op.run(*given, **op.inputs.options), load, judge, len(others))


def _shuffled(op: Op, tensor: Tensor) -> Tensor:
    return tensor[op.draw.order(tensor.shape[0])] if tensor.dim() else tensor


def _deterministic(candidate: Candidate[OpQuery], asked: Asked[OpQuery]) -> None:
    op = Op(candidate, asked)
    arguments = op.arguments(70)
    whole = tensors(op.run(*op.placed(arguments), **op.inputs.options))
    for count in (1, 2, 3, 17, 69):
        rows = op.draw.order(70)[:count]
        some = tuple(value[rows] if i in op.inputs.by_row else value for i, value in enumerate(arguments))
        for i, part in enumerate(tensors(op.run(*op.placed(some), **op.inputs.options))):
            check_same(part, whole[i][rows.to(part.device)], f"result {i}: rows {rows.tolist()} of 70 as a batch")


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())

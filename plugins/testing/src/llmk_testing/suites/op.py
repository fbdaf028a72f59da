"""Kernels of ops against the references of these, by their contracts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from llmk.api import KernelSpec, OpContract, OpQuery
from llmk.reference.op_examples import load_examples
from llmk_testing import attention_ops, linear_ops
from llmk_testing.bench import Bench
from llmk_testing.candidate import Asked, Candidate, agreeing
from llmk_testing.case import Case, Skip
from llmk_testing.op_under_test import Make, Op
from llmk_testing.recording import check_recorded, is_portable
from llmk_testing.rows import counts
from llmk_testing.suites import kernel_costs, op_calls, op_rows
from llmk_testing.trees import mapped, tensors
from llmk_testing.watch import poisoned


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
    yield from op_calls.cases(candidate, make, candidate.served[:2])
    yield from op_calls.form_cases(candidate, make, candidate.served, examples)
    if examples.leading:
        yield from op_calls.leading_cases(candidate, make, candidate.served)
    yield from kernel_costs.op_cases(
        candidate, make, candidate.served[:2], by_row=bool(examples.by_row), one_by_one=spec.deterministic
    )
    if examples.by_row:
        yield from op_rows.cases(candidate, make, candidate.served)
        for asked in candidate.deterministic if spec.deterministic else ():
            name = f"rows don't depend on the batch: {asked.label}"
            yield candidate.case(name, partial(op_rows.deterministic, make, asked))
    for asked in candidate.served[:2]:
        if spec.capture != "none":
            name = f"can be recorded and replayed: {asked.label}"
            yield candidate.case(name, partial(_recorded, candidate, make, asked))


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

    return check_recorded(
        candidate.bench,
        lambda: op.run(*given, **op.on_device),
        load,
        judge,
        len(others),
        portable=is_portable(candidate.spec),
    )


def _shuffled(op: Op, tensor: Tensor) -> Tensor:
    return tensor[op.draw.order(tensor.shape[0])] if tensor.dim() else tensor

"""Contracts of ops: whether they are true of the references."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from llmk.api import LinearQuery, OpContract
from llmk.api.specs import GIVEN_PARTS
from llmk.reference.linear import linear
from llmk.reference.op_examples import Draw, Facts, OpExamples, load_examples
from llmk_testing.bench import Bench
from llmk_testing.binding import bind, oracle
from llmk_testing.case import Case, Skip
from llmk_testing.queries import attention_queries
from llmk_testing.tolerance import Right, check, check_same, equal
from llmk_testing.trees import mapped, tensors

_ROWS, _MANY_ROWS = 5, 700
_SIZES = ("in_features", "out_features")


def cases(contract: OpContract, bench: Bench) -> Iterator[Case]:
    """The cases of one contract."""
    for name, run in (
        ("its reference has its signature and parts", _check_signature),
        ("its examples are true of the reference", _check_examples),
        *([("it is what its pattern's sites compute in turn", _check_pattern)] if contract.pattern else []),
    ):
        yield Case(contract.id, "op_contract", name, torch.inference_mode()(partial(run, contract, bench)))


def _check_signature(contract: OpContract, bench: Bench) -> None:
    spec = oracle(bench.registry, contract.op)
    assert spec.parts == contract.parts, f"{spec.id} has the parts {spec.parts}, the contract {contract.parts}"
    stubs = {part: lambda *args, **options: None for part in GIVEN_PARTS}
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(bind(bench.registry, spec, stubs)).parameters.values()
    names = tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
    assert names == contract.arguments, f"{spec.id} takes {', '.join(names)}; the signature is {contract.signature}"


def _check_pattern(contract: OpContract, bench: Bench) -> None:
    """Its arguments are those of both sites, and its reference computes what they do."""
    first = bench.registry.contracts.get(contract.pattern[0])
    assert first is not None, f"the pattern names the op {contract.pattern[0]!r}, which no installed wheel has"
    taken, wanted = contract.arguments, len(first.arguments) + 2
    assert len(taken) == wanted, (
        f"{contract.signature} has {len(taken)} arguments; those of {first.op}, weight and bias are {wanted}"
    )
    examples = load_examples(contract)
    before = bind(bench.registry, oracle(bench.registry, first.op), {})
    spanning = bind(bench.registry, oracle(bench.registry, contract.op), {"linear": linear})
    for facts in _facts(examples, bench, frozenset({"linear"})):
        draw = Draw(bench.random("op", contract.op), torch.float32)
        given = examples.make(draw, facts, _ROWS)
        weight, bias = draw.floats(facts["out_features"], facts["in_features"]), draw.floats(facts["out_features"])
        right = linear(before(*given), weight, bias)
        check(spanning(*given, weight, bias), Right(right, right.dtype), f"{first.op}, then a linear layer, {facts}")


def _check_examples(contract: OpContract, bench: Bench) -> str:
    """They are the same for equal draws, as kernels that are measured take turns with them, have rows and facts as they
    should, and what the reference changes of them is declared."""
    if not contract.examples:
        raise Skip("it names no examples: kernels of the op are neither tested nor measured")
    examples = load_examples(contract)
    kinds = bench.registry.site_kinds(contract.op)
    both = sorted({*contract.weights} & {*contract.mutates_args})
    assert not both, f"{both[0]} is named in weights, which are never changed"
    known = _facts(examples, bench, kinds)
    assert known, "the examples have no facts"
    for facts in known:
        missing = [name for name in contract.facts if name not in facts]
        assert not missing, f"the contract names the fact {missing[0]!r}, which the examples' facts {facts} lack"
    undeclared = sorted(
        _read(contract, examples, bench, known) - {*contract.facts, *(_SIZES if "linear" in kinds else ())}
    )
    assert not undeclared, f"the examples need the fact {undeclared[0]!r}, which the contract does not name"
    given = len(contract.arguments) - (2 if kinds else 0)
    for facts in known:
        for make in (examples.make, *([examples.benchmark] if examples.benchmark else [])):
            one, other = (make(_draw(contract, bench), facts, _ROWS) for _ in range(2))
            assert len(one) == given, (
                f"the examples make {len(one)} arguments, {given} of {contract.signature} are expected"
            )
            for place, (first, second) in enumerate(zip(tensors(one), tensors(other), strict=True)):
                check_same(second, first, f"tensor {place} of the arguments, made of the same draw twice")
    for rows in (1, _ROWS, _MANY_ROWS):
        one = examples.make(_draw(contract, bench), known[0], rows)
        for name in examples.by_row:
            found = len(one[contract.arguments.index(name)])
            assert found == rows, f"argument {name} is by_row, but has {found} rows where {rows} were requested"
    if not kinds:
        _check_mutation(contract, examples, bench, [(known[0], 1), *((facts, _ROWS) for facts in known)])
    absent = [f"OpExamples.{name}" for name in ("strided", "float32") if not getattr(examples, name)]
    return f"it names no argument in {' and '.join(absent)}: none is tried with other strides or dtypes" * bool(absent)


def _check_mutation(
    contract: OpContract, examples: OpExamples, bench: Bench, made_of: Sequence[tuple[Facts, int]]
) -> None:
    """What is declared is changed by some facts and rows, and nothing else by any."""
    changed = set[str]()
    for facts, rows in made_of:
        options = examples.options_at(Draw(bench.random("options", contract.op), torch.float32), facts)
        changed |= _changed(contract, options, bench, examples.make(_draw(contract, bench), facts, rows))
    found, declared = (sorted(names, key=contract.arguments.index) for names in (changed, contract.mutates_args))
    assert found == declared, f"the reference changes the arguments {found}, mutates_args names {declared}"


def _changed(contract: OpContract, options: Facts, bench: Bench, arguments: tuple[Any, ...]) -> set[str]:
    """The names of the arguments that the reference changes."""
    reference = bind(bench.registry, oracle(bench.registry, contract.op), {})
    after = mapped(torch.clone, arguments)
    results = reference(*after, **options)
    if all(map(_is_number, tensors(arguments))):
        assert not any(tensor.isnan().any() for tensor in tensors(results)), "of its examples, the reference makes NaN"
    named = zip(contract.arguments, arguments, after, strict=True)
    return {name for name, old, new in named if not all(map(equal, tensors(old), tensors(new)))}


def _facts(examples: OpExamples, bench: Bench, kinds: frozenset[str]) -> list[Facts]:
    """The facts of the examples; of an op over sites, those at the first site that it is for."""
    if not kinds:
        return list(examples.facts_at())
    common: dict[str, Any] = {"platform": bench.facts, "site": "any", "dtype": "float32"}
    if "linear" in kinds:
        sizes: dict[str, Any] = {"in_features": 72, "out_features": 40}
        return [{**facts, **sizes} for facts in examples.facts_at(LinearQuery(**sizes, **common))]
    sites = (make(**common) for make in attention_queries().values())
    return next((list(found) for site in sites if (found := examples.facts_at(site))), [])


def _draw(contract: OpContract, bench: Bench) -> Draw:
    return Draw(bench.random("op", contract.op), torch.float32)


def _read(contract: OpContract, examples: OpExamples, bench: Bench, known: Sequence[Facts]) -> set[str]:
    """The facts that the examples need, of any of the ``known`` ones: those that they read without asking whether they
    are there."""
    names = set[str]()
    for facts in known:
        read = _Read(facts)
        examples.make(_draw(contract, bench), read, _ROWS)
        examples.options_at(_draw(contract, bench), read)
        names |= read.names
    return names


def _is_number(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


class _Read(dict[str, Any]):
    """Facts that note which of them are read, but those that were read first."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.names = set[str]()
        self._asked = set[object]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._asked:
            self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._asked.add(name)
        return super().__contains__(name)

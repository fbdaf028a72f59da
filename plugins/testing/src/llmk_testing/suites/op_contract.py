"""Contracts of ops: whether they are true of the references."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
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

_ROWS = 5
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


def _check_examples(contract: OpContract, bench: Bench) -> None:
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
    read = _Read(known[0])
    one, other = (_arguments(contract, examples, bench, read) for _ in range(2))
    undeclared = sorted(read.names - {*contract.facts, *(_SIZES if "linear" in kinds else ())})
    assert not undeclared, f"the examples need the fact {undeclared[0]!r}, which the contract does not name"
    for place, (first, second) in enumerate(zip(tensors(one), tensors(other), strict=True)):
        check_same(second, first, f"tensor {place} of the arguments, made of the same draw twice")
    given = len(contract.arguments) - (2 if kinds else 0)
    assert len(one) == given, f"the examples make {len(one)} arguments, {given} of {contract.signature} are expected"
    for name in examples.by_row:
        rows = len(one[contract.arguments.index(name)])
        assert rows == _ROWS, f"argument {name} is by_row, but has {rows} rows where {_ROWS} were requested"
    if not kinds:
        options = examples.options_at(Draw(bench.random("options", contract.op), torch.float32), known[0])
        _check_mutation(contract, options, bench, one)


def _check_mutation(contract: OpContract, options: Facts, bench: Bench, arguments: tuple[Any, ...]) -> None:
    reference = bind(bench.registry, oracle(bench.registry, contract.op), {})
    after = mapped(torch.clone, arguments)
    results = reference(*after, **options)
    if all(map(_is_number, tensors(arguments))):
        assert not any(tensor.isnan().any() for tensor in tensors(results)), "of its examples, the reference makes NaN"
    named = zip(contract.arguments, arguments, after, strict=True)
    changed = [name for name, old, new in named if not all(map(equal, tensors(old), tensors(new)))]
    declared = sorted(contract.mutates_args, key=contract.arguments.index)
    assert changed == declared, f"the reference changes the arguments {changed}, mutates_args names {declared}"


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


def _arguments(contract: OpContract, examples: OpExamples, bench: Bench, facts: Facts) -> tuple[Any, ...]:
    return examples.make(Draw(bench.random("op", contract.op), torch.float32), facts, _ROWS)


def _is_number(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


class _Read(dict[str, Any]):
    """Facts that note which of them are read."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.names = set[str]()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

"""The suite of executors: what they say of machines and models, the kernels that the plan may choose for them, and the
tokens that they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from llmk.api import ExecutorQuery, ExecutorSpec, ModelFacts, Verdict
from llmk_testing.bench import Bench
from llmk_testing.case import Case
from llmk_testing.suites import executor_steps

_KINDS = ("attention", "linear", "moe")


def cases(spec: ExecutorSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one executor: what it says, and then what it serves."""

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "executor", name, run)

    yield case("says what it can run, alike each time, with a reason where it can't", partial(_answers, spec, bench))
    yield case("its kernels are for sites of models, each with an id of its own", partial(_kernels, spec))
    yield from executor_steps.cases(spec, bench)


def _answers(spec: ExecutorSpec, bench: Bench) -> str:
    names = {"architecture": "OddForCausalLM", "model": "odd.odd", "dtype": "float32"}
    sizes = {"num_layers": 2, "hidden_size": 32, "vocab_size": 32, "max_model_len": 64, "num_parameters": 4096}
    given: dict[str, Any] = {**names, **sizes}
    model = ModelFacts(**given)
    query = ExecutorQuery(
        platform=bench.facts, model=model, tree=None, dtype="float32", cache_dtype="float32", tensor=1, pipeline=1
    )
    queries = [query, replace(query, tensor=2), replace(query, pipeline=2), replace(query, dtype="int7")]
    for each in queries:
        first, again = spec.supports(each), spec.supports(each)
        assert isinstance(first, Verdict), f"supports returned {first!r} instead of a Verdict"
        assert first == again, f"supports said {first} of a query, and then {again} of the same"
        said = all(reason.code for reason in first.reasons)
        assert first or (first.reasons and said), f"supports refuses without a reason: {each}"
    return f"{len(queries)} queries"


def _kernels(spec: ExecutorSpec) -> str:
    wheel = spec.id.partition(".")[0]
    for kernel in spec.kernels:
        assert kernel.kind in _KINDS, f"{kernel.id} is of kind {kernel.kind!r}; executors have {', '.join(_KINDS)}"
        assert kernel.id.startswith(f"{wheel}."), f"{kernel.id} does not start with {wheel!r}, as {spec.id} does"
    ids = [kernel.id for kernel in spec.kernels]
    twice = sorted({id for id in ids if ids.count(id) > 1})
    assert not twice, f"two kernels have the id {', '.join(twice)}"
    return f"{len(ids)} kernels"

"""Cases of executors that serve: small random checkpoints, in float32, against the engine's own executor.

What is served is awkward on purpose: prompts of odd lengths in one batch, more of them than slots, which later ones
take, chunks of a few tokens, and so few blocks of cache that requests are preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llmk.api import ExecutorSpec, LlmkError
from llmk.config import load
from llmk.planning.boot import boot
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.served import CHUNKS, MODELS, NEAR, OTHERS, WHOLE, Served, compare, greedy, prompts
from llmk_testing.suites import executor_draws, executor_driven

_ENGINES: dict[str, dict[str, Any]] = {"whole prompts": WHOLE, "chunks, few blocks and slots": CHUNKS}
_BROKEN: dict[str, tuple[Any, float]] = {"NaN": (slice(None), torch.nan), "infinite": (0, torch.inf)}
"""Elements of the last norm's weight, and what they are, so that logits are."""
_NEAR_IN_BFLOAT16 = 0.3


def cases(spec: ExecutorSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one executor."""
    served = Served(spec, bench)

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "executor", name, run)

    for model in MODELS:
        for engine in _ENGINES:
            run = partial(_greedy, served, model, engine)
            yield case(f"{model}: greedy tokens are those of the engine, with {engine}", run)
        driven = partial(executor_driven.check_driven, served, model)
        yield case(f"{model}: steps may follow before tokens are read, with blocks in any order", driven)
    for model in OTHERS:
        yield case(f"{model}: greedy tokens are those of the engine", partial(_greedy, served, model, "whole prompts"))
    yield from executor_draws.cases(served, case)
    yield case("a cache of another dtype than the model's holds what it should", partial(_cache_dtype, served))
    yield case("memory is counted as it is allocated", partial(executor_driven.check_memory, served))
    for name in _BROKEN:
        yield case(f"logits that are {name} are the engine's error", partial(_broken, served, name))
    yield case("of requests of one step, those with NaN are named", partial(executor_driven.check_broken_one, served))


def _greedy(served: Served, model: str, engine: str) -> str:
    folder, expected = served.folder(model), served.expected(model)
    params = greedy(logprobs=0 if "logprobs" in served.spec.knows else None)
    given = prompts(served.bench)
    with served.open(folder, _ENGINES[engine]) as llm:
        for which in (range(len(given)), reversed(range(len(given)))):  # later ones get the slots of the first
            order = list(which)
            found = llm.generate([given[each] for each in order], params, use_tqdm=False)
            for number, output in zip(order, found, strict=True):
                _check(output.outputs[0], expected[number], len(given[number]))
        return f"{2 * len(given)} requests, {llm.stats.preemptions} preemptions"


def _check(found: Any, expected: Any, length: int) -> None:
    tokens, wanted = found.token_ids, expected.token_ids
    assert len(tokens) == len(wanted), f"of a prompt of {length} tokens, {len(tokens)} of {len(wanted)} are generated"
    same = compare(tokens, expected, length)
    for at, entry in enumerate(found.logprobs[:same] if found.logprobs else ()):
        right = expected.logprobs[at].logprob
        assert abs(entry.logprob - right) < NEAR, f"log-probability {entry.logprob} of token {at}, not {right}"


def _cache_dtype(served: Served) -> str:
    """Of bfloat16, where the model is of float32."""
    model, engine = served.any_model(), {**WHOLE, "cache.dtype": "bfloat16"}
    folder, given = served.folder(model), prompts(served.bench)
    verdict = served.spec.supports(boot(load(served.settings(folder) | engine, environ={})).executor_query)
    if not verdict:
        raise Skip("; ".join(map(str, verdict.reasons)))
    with served.open(folder, engine, own=True) as llm:
        right = [each.outputs[0] for each in llm.generate(given, greedy(4, logprobs=4), use_tqdm=False)]
    with served.open(folder, engine) as llm:
        found = [each.outputs[0] for each in llm.generate(given, greedy(4), use_tqdm=False)]
    for prompt, one, other in zip(given, found, right, strict=True):
        compare(one.token_ids, other, len(prompt), "with a cache of bfloat16, ", _NEAR_IN_BFLOAT16)
    return f"{len(given)} requests"


def _broken(served: Served, name: str) -> str:
    folder, _ = served.changed(served.any_model(), "broken", {"model.norm.weight": _BROKEN[name]})
    engine, own = (_said(served, folder, own=own) for own in (True, False))
    assert engine, f"the engine's own executor takes what is {name} for logits"
    assert own == engine, f"the request ends with {own or 'tokens'!r}, and by the engine's own executor with {engine!r}"
    return engine


def _said(served: Served, folder: Path, *, own: bool) -> str:
    with served.open(folder, WHOLE, own=own) as llm:
        try:
            llm.generate([[5, 6, 7]], greedy(4), use_tqdm=False)
        except LlmkError as error:
            return str(error)
    return ""

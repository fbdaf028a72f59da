"""Before the first request: steps such as requests will need, on a batch and a cache of their own.

So first use compiles, initializes and allocates while no request waits, and the memory that steps take is known before
the cache gets the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from llmk.api import NotEnoughMemory
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.engine.wire.step import NewRequest, StepPlan, Work
from llmk.planning.memory import gib

if TYPE_CHECKING:
    from llmk.api import Plan, Platform
    from llmk.engine.device.graphs import StepShape
    from llmk.engine.execution.runner import Runner
    from llmk.planning.cache_groups import CacheGroup

logger = logging.getLogger(__name__)

_LONGER = 32
"""Tokens of a prompt that kernels for a few tokens don't take."""
BLOCKS = 16
"""Blocks of the cache that is warmed up with; its requests share them."""

_GREEDY = SamplingParams(temperature=0.0)
_FEATURES = (
    SamplingParams(),
    SamplingParams(top_k=8),
    SamplingParams(top_p=0.9),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=0.0, logprobs=1),
    SamplingParams(temperature=0.0, presence_penalty=0.5),
    SamplingParams(temperature=0.0, logit_bias={0: 1.0}),
)
_ALL = SamplingParams(top_k=8, top_p=0.9, min_p=0.1, logprobs=20, presence_penalty=0.5, repetition_penalty=1.1)


@dataclass(frozen=True, slots=True)
class _Part:
    """One request of a step: so many tokens after so many others."""

    num_tokens: int
    before: int = 0
    params: SamplingParams = _GREEDY


class _NoCapture:
    """Graphs that record nothing: each step is run as it is."""

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        run()
        return run

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """One after the other."""
        return first(), second()


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What is to be run on ``runner``, whose batch and cache are for nothing else.

    Attributes:
        max_tokens, max_requests, max_len: of a step, of a step, and of a request.
        recorded: shapes of which steps will be recorded; none: they won't be.
    """

    runner: Runner
    groups: Sequence[CacheGroup]
    max_tokens: int
    max_requests: int
    max_len: int
    recorded: Sequence[StepShape]

    def run(self, platform: Platform) -> int | None:
        """Compiles, then runs; returns the bytes that steps take at a time, where the platform can measure it.

        Raises:
            NotEnoughMemory: where the largest step doesn't fit next to the weights.
        """
        start = time.perf_counter()
        self._compile(platform)
        compiled = time.perf_counter()
        try:
            eager = platform.memory.measure(self._eager)
            graphs = platform.memory.measure(lambda: self._record(sorted(self.recorded)[-1:]))
        except torch.OutOfMemoryError as error:
            step = f"a step of {self.max_tokens} tokens and {self.max_requests} requests"
            hint = "lower scheduler.max_num_batched_tokens or scheduler.max_num_seqs"
            raise NotEnoughMemory(f"{step} does not fit next to the weights", hint=hint) from error
        # What graphs hold is theirs alone.
        needed = None if eager is None or graphs is None else eager + graphs
        took = compiled - start, time.perf_counter() - compiled
        logger.info("warm-up: kernels %.2f s, steps %.2f s, which take %s", *took, gib(needed) if needed else "?")
        return needed

    def _compile(self, platform: Platform) -> None:
        if platform.compiling is None:
            return
        try:
            with platform.compiling.ahead(), self.runner.build.representative_layers():
                self._eager()
                self._submit(self._mixed())
                self._record(self._representative())
        except Exception:  # steps in which kernels are left out may fail where whole ones don't
            logger.warning("not all kernels could be compiled ahead", exc_info=True)

    def _eager(self) -> None:
        """Steps as they are issued kernel by kernel, one after the other."""
        self._submit(self._steps())

    def _submit(self, steps: Iterable[list[_Part]]) -> None:
        for parts in steps:
            new = [self._request(slot, part) for slot, part in enumerate(parts)]
            work = [
                Work(slot=slot, before=part.before, num_tokens=part.num_tokens, sample=True)
                for slot, part in enumerate(parts)
            ]
            self.runner.submit(StepPlan(step=0, new=new, work=work)).result()
            self.runner.submit(StepPlan(step=0, freed=[request.slot for request in new]))

    def _record(self, shapes: Sequence[StepShape]) -> None:
        """Steps as they will be recorded."""
        if shapes:
            self.runner.record(_NoCapture(), shapes)

    def _representative(self) -> list[StepShape]:
        """Shapes for which all kernels are needed. They differ by powers of two at most: what lies between needs none
        of its own."""
        requests = _powers(max((shape.requests for shape in self.recorded), default=0))
        tokens = _powers(max((shape.tokens for shape in self.recorded), default=0))

        def is_needed(shape: StepShape) -> bool:
            by_requests = shape.decodes or shape.samples > 1
            return shape.requests in requests if by_requests else shape.tokens in tokens

        return [shape for shape in self.recorded if is_needed(shape)]

    def _steps(self) -> Iterator[list[_Part]]:
        """Prompts of all lengths at which kernels take turns, and of some between; requests that decode, as many as no
        recorded step has room for, short and long; every feature of sampling by itself; and the largest step, which has
        all of these."""
        few, long = min(1, self.max_len - 1), self.max_len - 1
        most = min(self.max_requests, self.max_tokens)
        for count in self._counts(self.max_tokens):
            whole, rest = divmod(count, self.max_len)
            yield ([_Part(self.max_len)] * whole + [_Part(rest)] * (rest > 0))[: self.max_requests]
        for params in _FEATURES:
            yield [_Part(1, few, params)]
        recorded = max((shape.requests for shape in self.recorded if shape.decodes), default=0)
        for count in self._counts(most):
            if count > recorded:
                yield [_Part(1, few)] * count
                yield [_Part(1, long), *[_Part(1, few)] * (count - 1)]
        prompt = min(self.max_tokens - most + 1, self.max_len)
        yield [_Part(1, long, _ALL), *[_Part(1, few, _ALL)] * (most - 2), _Part(prompt, 0, _ALL)][:most]

    def _mixed(self) -> Iterator[list[_Part]]:
        """Some requests that decode, and one with a short or a longer prompt: kernels take turns by the number of
        requests too, and what is recorded has room for many."""
        before = min(1, self.max_len - 1)
        for count in self._counts(min(self.max_requests, self.max_tokens - 1)):
            for length in (2, _LONGER):
                prompt = min(length, self.max_len, self.max_tokens - count + 1)
                yield [_Part(1, before)] * (count - 1) + [_Part(prompt)]

    def _counts(self, most: int) -> list[int]:
        """Powers of two, the numbers of tokens at which another kernel takes its turn, and the most."""
        plan = self.runner.build.plan
        turns = {piece.start for choice in plan.all_choices() for piece in choice.pieces}
        return sorted(count for count in turns | _powers(most) if count <= most)

    def _request(self, slot: int, part: _Part) -> NewRequest:
        length = part.before + part.num_tokens
        return NewRequest(
            id=f"warm-up {slot}",
            slot=slot,
            token_ids=[0] * length,
            num_prompt_tokens=part.before or length,
            num_computed=part.before,
            block_ids=[[number % BLOCKS for number in range(group.blocks_for(length))] for group in self.groups],
            params=part.params,
            eos_token_ids=(),
            seed=0,
            adapter=int(self.runner.batch.adapters is not None),
        )


def _powers(most: int) -> set[int]:
    """The powers of two up to a number, and the number."""
    return {most, *(1 << power for power in range(most.bit_length()))}


def compiles(plan: Plan) -> bool:
    """Whether any kernel of the plan or its shadows is compiled when it is first used."""
    shadows = (choice for shadow in plan.shadows for choice in shadow.choice.with_parts())
    return any(piece.jit for choice in (*plan.all_choices(), *shadows) for piece in choice.pieces)

"""Cases of executors that are handed steps by the kit itself: with blocks in any order, steps that are submitted before
the one before was read and changed once they are submitted, and what they say of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch.autograd.profiler import profile

from llmk.api import ExecutorContext, ExecutorSpec, ModelExecutor, StepTokens
from llmk.config import load
from llmk.kernel.loader import load_object
from llmk.planning.boot import Boot, boot
from llmk.planning.cache_groups import cache_groups
from llmk_testing.case import Skip
from llmk_testing.served import Served, compare, greedy, prompts

_BLOCK, _BLOCKS = 4, 60
_NAN = 7
"""A token whose embedding is NaN."""


@dataclass(slots=True)
class Params:
    """As :class:`llmk.api.StepSampling`: greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(slots=True)
class Request:
    """As :class:`llmk.api.StepRequest`."""

    slot: int
    token_ids: list[int]
    block_ids: list[list[int]]
    num_computed: int = 0
    params: Params = field(default_factory=Params)
    seed: int = 0


@dataclass(slots=True)
class Work:
    """As :class:`llmk.api.StepWork`."""

    slot: int
    before: int
    num_tokens: int
    sample: bool = True
    new_blocks: Sequence[Sequence[int]] = ()


@dataclass(slots=True)
class OneStep:
    """As :class:`llmk.api.Step`."""

    step: int
    freed: list[int]
    new: list[Request]
    work: list[Work]


@dataclass(slots=True)
class Driven:
    """An executor, and the steps that it was handed."""

    executor: ModelExecutor
    num_groups: int
    _steps: int = 0
    _pending: Any = None

    def step(self, *work: Work, new: Sequence[Request] = (), freed: Sequence[int] = ()) -> StepTokens | None:
        """Submits a step, and spoils it then; returns what the one before has."""
        step = OneStep(self._steps, list(freed), list(new), list(work))
        before, self._pending = self._pending, self.executor.submit(step)
        self._steps += 1
        for request in step.new:
            request.token_ids[:] = [1] * len(request.token_ids)
            for blocks in request.block_ids:
                blocks.reverse()
            request.num_computed = 0
        for each in step.work:
            each.before, each.num_tokens = 0, 1
        step.new.clear()
        step.work.clear()
        step.freed[:] = range(8)
        return before and before.result()  # type: ignore[no-any-return]

    def last(self) -> StepTokens:
        """What the last step has."""
        found: StepTokens = self._pending.result()
        self._pending = None
        return found

    def request(self, slot: int, tokens: Sequence[int], blocks: Sequence[int], num_computed: int = 0) -> Request:
        """A request whose groups all have blocks of the same numbers, of a range of each group's own."""
        own = [[block + group * _BLOCKS for block in blocks] for group in range(self.num_groups)]
        return Request(slot, list(tokens), own, num_computed)

    def blocks(self, *blocks: int) -> list[list[int]]:
        """New blocks, by group."""
        return [[block + group * _BLOCKS for block in blocks] for group in range(self.num_groups)]


def check_driven(served: Served, model: str) -> str:
    """Two prompts, of which one is computed in chunks while the other one decodes; then a third that shares the first
    blocks of one. Each step is submitted before the tokens of the one before it were read."""
    every = prompts(served.bench)
    long, short, sharing = every[3], every[2], every[-1]
    expected = served.expected(model)
    blocks = list(range(_BLOCKS - 1, -1, -1))
    with _driven(served, model) as driven:
        first, second, third = blocks[:17], blocks[17:20], [*blocks[:12], *blocks[20:24]]
        new = [driven.request(2, long, first[:6]), driven.request(0, short, second)]
        driven.step(Work(2, 0, 20, sample=False), Work(0, 0, 5), new=new)
        got: dict[int, list[int]] = {0: [], 2: [], 1: []}
        found = driven.step(Work(0, 5, 1), Work(2, 20, 44, new_blocks=driven.blocks(*first[6:])))
        _take(found, got[0])
        _take(driven.step(Work(2, 64, 1), Work(0, 6, 1)), got[0], got[2])
        entered = driven.request(1, sharing, third, num_computed=48)
        _take(driven.step(Work(1, 48, 5), Work(2, 65, 1), new=[entered], freed=[0]), got[2], got[0])
        _take(driven.step(freed=[2]), got[1], got[2])
        _take(driven.step(Work(1, 53, 1)))
        _take(driven.last(), got[1])
    for tokens, number in ((got[0], 2), (got[2], 3), (got[1], len(every) - 1)):
        compare(tokens, expected[number], len(every[number]), "where steps follow before tokens are read, ")
    return f"{sum(map(len, got.values()))} tokens"


def check_broken_one(served: Served) -> str:
    """The others of its step are served."""
    model = served.any_model()
    folder, tensors = served.changed(model, "one", {"model.embed_tokens.weight": (_NAN, torch.nan)})
    if "lm_head.weight" not in tensors:
        raise Skip("the model that it can run has tied embeddings")
    every = [[token + (token == _NAN) for token in prompt] for prompt in prompts(served.bench)]
    with served.open(folder, {"cache.num_blocks": 64}, own=True) as llm:
        params = greedy(2, logprobs=2)
        right = [llm.generate([every[each]], params, use_tqdm=False)[0].outputs[0] for each in (1, 2)]
    with _driven(served, model, folder) as driven:
        new = [
            driven.request(0, every[1], range(9)),
            driven.request(1, [5, _NAN, 6], [20]),
            driven.request(2, every[2], [30, 31]),
        ]
        driven.step(Work(0, 0, 30, sample=False), Work(1, 0, 3), Work(2, 0, 5), new=new)
        found = driven.step(Work(2, 5, 1), Work(0, 30, 3), Work(1, 3, 1))
        assert found is not None
        assert list(found.broken) == [0], f"of two sampled requests the first has NaN, and `broken` is {found.broken}"
        last = driven.last()
        assert list(last.broken) == [2], f"of three sampled requests the last has NaN, and `broken` is {last.broken}"
    compare([found.token_ids[1], last.token_ids[0]], right[1], 5, "next to a request with NaN, ")
    compare([last.token_ids[1]], right[0], 33, "next to a request with NaN, ")
    return "2 steps"


def check_memory(served: Served) -> str:
    """What it says of a block's bytes is what it allocates, also where the cache has another dtype than the model."""
    platform, said = served.bench.platform, []
    for dtype in ("float32", "bfloat16"):
        made = _boot(served, served.any_model(), {"cache.dtype": dtype})
        if not served.spec.supports(made.executor_query):
            continue
        executor = _executor(served.spec, made)
        free, available = platform.memory.available(), executor.available()
        free = max(free, platform.memory.available())
        assert 0 <= available <= 1.05 * free, f"available() is {available} bytes, and {free} are free"
        specs = list(executor.cache_specs)
        (groups,) = cache_groups(made, [specs])
        blocks = max(64, (48 << 20) // sum(each.page_bytes for each in specs))
        counted = blocks * sum(each.page_bytes for each in specs)
        found = _peak(served, partial(executor.allocate, blocks, groups))
        executor.close()
        executor.close()
        if not found:
            return "what it allocates is not seen"
        if len(groups) == 1:
            assert 0.9 * counted <= found <= 1.2 * counted, (
                f"with a cache of {dtype}, {blocks} blocks of {len(specs)} layers have {counted} bytes by their"
                f" page_bytes, and allocate() took {found}"
            )
        said.append(f"{dtype}: {found >> 20} MiB")
    return ", ".join(said)


def _peak(served: Served, run: Callable[[], None]) -> int:
    """Bytes that a run took at a time, as far as that is seen."""
    if served.bench.device.type != "cpu":
        return served.bench.platform.memory.measure(run) or 0
    with profile(profile_memory=True) as profiled:
        run()
    assert profiled.kineto_results is not None
    changes = [each for each in profiled.kineto_results.events() if each.name() == "[memory]"]
    return max(accumulate(each.nbytes() for each in sorted(changes, key=lambda each: each.start_ns())), default=0)


def _take(found: StepTokens | None, *lists: list[int]) -> None:
    tokens = () if found is None else found.token_ids
    assert len(tokens) == len(lists), f"a step in which {len(lists)} are sampled has the tokens {list(tokens)}"
    for token, own in zip(tokens, lists, strict=True):
        own.append(int(token))


@contextmanager
def _driven(served: Served, model: str, folder: Any = None) -> Iterator[Driven]:
    made = _boot(served, model, {}, folder)
    executor = _executor(served.spec, made)
    try:
        (groups,) = cache_groups(made, [list(executor.cache_specs)])
        executor.allocate(_BLOCKS * len(groups), groups)
        yield Driven(executor, len(groups))
    finally:
        executor.close()


def _boot(served: Served, model: str, more: dict[str, Any], folder: Any = None) -> Boot:
    own = {"cache.block_size": _BLOCK, "scheduler.max_num_seqs": 3, "scheduler.max_num_batched_tokens": 80}
    settings = served.settings(folder or served.folder(model)) | own | {"select.executor.use": served.spec.id} | more
    return boot(load(settings, environ={}))


def _executor(spec: ExecutorSpec, made: Boot) -> ModelExecutor:
    config = made.settings.config
    found = next(found for found in made.registry.of(ExecutorSpec) if found.spec.id == spec.id)
    context = ExecutorContext(
        query=made.executor_query,
        plan=made.plan,
        checkpoint=made.checkpoint,
        block_size=config.cache.block_size,
        max_model_len=made.facts.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        warm_up=False,
        options=config.plugin.get(found.plugin.name, {}),
    )
    make: Callable[[ExecutorContext], ModelExecutor] = load_object(spec.implementation)
    return make(context)

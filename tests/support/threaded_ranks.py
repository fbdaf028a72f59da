"""An executor whose ranks are threads of one process: each has its own model, cache and batch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rerun import Rerun

from llmk.engine.device.graphs import StepShape
from llmk.engine.execution.build import LoadedModel, build_runner, load_model
from llmk.engine.execution.executor import Executor
from llmk.engine.processes.ranks.multiprocess_executor import smallest_cache
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.planning.cache_groups import cache_groups
from llmk.planning.memory import CachePlan
from llmk_testing.ranks import PATIENCE, Meeting, on_all

_PLANS, _MASKS = msgspec.msgpack.Decoder(StepPlan), msgspec.msgpack.Decoder(Masks)
"""Made here, as msgspec crashes where several threads are the first to resolve a type's annotations."""


@dataclass
class _Pending:
    step: int
    results: queue.Queue[Any]

    def is_done(self) -> bool:
        return not self.results.empty()

    def result(self) -> StepResult:
        result = self.results.get(timeout=PATIENCE)
        if isinstance(result, BaseException):
            raise result
        assert result.step == self.step
        return result


class ThreadedRanks(Executor):
    """An executor whose ranks are threads. ``loaded`` holds what each has of the model; where ``sizes`` are named, each
    records steps for so many requests by its own of ``graphs``."""

    asynchronous = "threads run the steps"
    sizes: Sequence[int] = ()

    def __init__(self, boot: Any) -> None:
        self.boot = boot
        self.loaded: list[LoadedModel] = []
        self.graphs = [Rerun() for _ in range(boot.plan.num_ranks)]
        self._ranks = range(boot.plan.num_ranks)
        self._meeting = Meeting(boot.plan.tensor, boot.plan.pipeline)
        self._plans: list[queue.Queue[bytes | None]] = [queue.Queue() for _ in self._ranks]
        self._masks: list[queue.Queue[bytes]] = [queue.Queue() for _ in self._ranks]
        self._results: queue.Queue[Any] = queue.Queue()
        self._threads: list[threading.Thread] = []

    @classmethod
    def start(cls, boot: Any, trace: Any) -> tuple[ThreadedRanks, CachePlan]:
        """In the place of ``llmk.engine.launch.start_executor``."""
        ranks = cls(boot)
        ranks.loaded = on_all(ranks._meeting, ranks._load)
        loaded = ranks.loaded
        specs = [each.cache_specs for each in loaded]
        groups = cache_groups(boot, specs[:: boot.plan.tensor])
        cache = smallest_cache(boot, groups, specs, [loaded[0].platform.memory.available()] * len(specs))
        runners = [build_runner(boot, each, cache.num_blocks, groups[each.build.parallel.stage]) for each in loaded]
        if cls.sizes:
            on_all(
                ranks._meeting,
                lambda rank: runners[rank].record(ranks.graphs[rank], [StepShape(n, n) for n in cls.sizes]),
            )
        for rank in ranks._ranks:
            thread = threading.Thread(target=ranks._run, args=(rank, runners[rank]), daemon=True)
            ranks._threads.append(thread)
            thread.start()
        return ranks, cache

    def submit(self, plan: StepPlan) -> _Pending:
        data = msgspec.msgpack.encode(plan)
        for plans in self._plans:
            plans.put(data)
        return _Pending(plan.step, self._results)

    def sample(self, masks: Masks) -> None:
        data = msgspec.msgpack.encode(masks)
        for plans in self._masks:
            plans.put(data)

    def close(self) -> None:
        for plans in self._plans:
            plans.put(None)
        for thread in self._threads:
            thread.join(PATIENCE)

    def _load(self, rank: int) -> LoadedModel:
        return load_model(self.boot, rank, lambda platform: self._meeting.place(rank))

    def _run(self, rank: int, runner: Any) -> None:
        tells = rank == self.boot.plan.tensor * (self.boot.plan.pipeline - 1)
        while (data := self._plans[rank].get()) is not None:
            try:
                plan = _PLANS.decode(data)
                pending = runner.submit(plan)
                if plan.deferred:
                    runner.sample(_MASKS.decode(self._masks[rank].get(timeout=PATIENCE)))
                result = pending.result()
            except BaseException as error:
                self._meeting.abandon()
                self._results.put(error)
                return
            if tells:
                self._results.put(result)

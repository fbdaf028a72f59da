"""Ranks as threads of one process, so that what models and layers do with their place can be tested without starting
processes: each has its own model, cache and batch, and they exchange tensors through memory.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor

from llmk.engine.core import Executor
from llmk.engine.groups import cache_groups
from llmk.engine.launch import LoadedModel, build_runner, load_model
from llmk.engine.memory import CachePlan
from llmk.engine.step import StepPlan, StepResult
from llmk.engine.workers import smallest_cache
from llmk.nn.parallel import Arrival, Parallel

PATIENCE = 60.0


@dataclass
class Meeting:
    """Where the ranks of a model meet."""

    tensor: int
    pipeline: int

    def __post_init__(self) -> None:
        self.barriers = [threading.Barrier(self.tensor) for _ in range(self.pipeline)]
        self.everyone = threading.Barrier(self.tensor * self.pipeline)
        self.slots: list[list[Any]] = [[None] * self.tensor for _ in range(self.pipeline)]
        self.ways: dict[tuple[int, int, int], queue.Queue[Tensor]] = {
            (tensor_rank, source, target): queue.Queue()
            for tensor_rank in range(self.tensor)
            for source in range(self.pipeline)
            for target in range(self.pipeline)
        }

    def place(self, rank: int) -> Threaded:
        """A rank's place; ranks count through the first stage, then through the next."""
        stage, tensor_rank = divmod(rank, self.tensor)
        return Threaded(tensor_rank, self.tensor, stage, self.pipeline, meeting=self)

    def abandon(self) -> None:
        """Nobody is to wait any longer."""
        for barrier in (*self.barriers, self.everyone):
            barrier.abort()


@dataclass(slots=True)
class Threaded(Parallel):
    """The place of a thread."""

    meeting: Meeting = field(kw_only=True)

    def barrier(self) -> None:
        self.meeting.everyone.wait(PATIENCE)

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def send(self, tensor: Tensor, stage: int) -> None:
        assert tensor.is_contiguous()
        self.meeting.ways[self.tensor_rank, self.stage, stage].put(tensor.clone())

    def receive(self, tensor: Tensor, stage: int) -> Arrival:
        return _Arrival(self.meeting.ways[self.tensor_rank, stage, self.stage], tensor)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.num_calls += 1
        slots, barrier = self.meeting.slots[self.stage], self.meeting.barriers[self.stage]
        slots[self.tensor_rank] = x.clone()
        barrier.wait(PATIENCE)
        parts = list(slots)
        barrier.wait(PATIENCE)
        return parts


@dataclass
class _Arrival:
    way: queue.Queue[Tensor]
    tensor: Tensor

    def wait(self) -> None:
        arrived = self.way.get(timeout=PATIENCE)
        assert (arrived.shape, arrived.dtype) == (self.tensor.shape, self.tensor.dtype)
        self.tensor.copy_(arrived)


@dataclass
class _Pending:
    step: int
    results: queue.Queue[Any]

    def result(self) -> StepResult:
        result = self.results.get(timeout=PATIENCE)
        if isinstance(result, BaseException):
            raise result
        assert result.step == self.step
        return result


class ThreadedRanks(Executor):
    """An executor whose ranks are threads. ``loaded`` holds what each has of the model."""

    asynchronous = "threads run the steps"

    def __init__(self, boot: Any) -> None:
        self.boot = boot
        self.loaded: list[LoadedModel] = []
        self._ranks = range(boot.plan.num_ranks)
        self._meeting = Meeting(boot.plan.tensor, boot.plan.pipeline)
        self._plans: list[queue.Queue[bytes | None]] = [queue.Queue() for _ in self._ranks]
        self._results: queue.Queue[Any] = queue.Queue()
        self._threads: list[threading.Thread] = []

    @classmethod
    def start(cls, boot: Any, trace: Any) -> tuple[ThreadedRanks, CachePlan]:
        """In the place of ``llmk.engine.launch.start_executor``."""
        ranks = cls(boot)
        ranks.loaded = ranks._on_all(ranks._load)
        loaded = ranks.loaded
        specs = [each.cache_specs for each in loaded]
        groups = cache_groups(boot, specs[:: boot.plan.tensor])
        cache = smallest_cache(boot, groups, specs, [loaded[0].platform.memory.available()] * len(specs))
        runners = [build_runner(boot, each, cache.num_blocks, groups[each.build.parallel.stage]) for each in loaded]
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
                result = runner.submit(msgspec.msgpack.decode(data, type=StepPlan)).result()
            except BaseException as error:
                self._meeting.abandon()
                self._results.put(error)
                return
            if tells:
                self._results.put(result)

    def _on_all(self, make: Callable[[int], LoadedModel]) -> list[LoadedModel]:
        made: dict[int, Any] = {}

        def one(rank: int) -> None:
            try:
                made[rank] = make(rank)
            except BaseException as error:
                made[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in self._ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        for result in made.values():
            if isinstance(result, BaseException):
                raise result
        return [made[rank] for rank in self._ranks]

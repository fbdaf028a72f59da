"""Ranks as threads of one process, to test tensor and pipeline parallelism of models without starting processes.

They exchange tensors through memory.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from llmk.nn.parallel import Parallel, PendingReceive

T = TypeVar("T")
PATIENCE = 60.0
"""Timeout in seconds of a rank that waits for another."""


@dataclass
class Meeting:
    """The shared state of the ranks of a model."""

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
        """The :class:`Parallel` of a rank; ranks number the first stage, then the next."""
        stage, tensor_rank = divmod(rank, self.tensor)
        return Threaded(tensor_rank, self.tensor, stage, self.pipeline, meeting=self)

    def abandon(self) -> None:
        """Makes all waiting ranks fail."""
        for barrier in (*self.barriers, self.everyone):
            barrier.abort()


@dataclass(slots=True)
class Threaded(Parallel):
    """One rank, in a thread."""

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

    def receive(self, tensor: Tensor, stage: int) -> PendingReceive:
        return _PendingReceive(self.meeting.ways[self.tensor_rank, stage, self.stage], tensor)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.num_calls += 1
        slots, barrier = self.meeting.slots[self.stage], self.meeting.barriers[self.stage]
        slots[self.tensor_rank] = x.clone()
        barrier.wait(PATIENCE)
        parts = list(slots)
        barrier.wait(PATIENCE)
        return parts


@dataclass
class _PendingReceive:
    way: queue.Queue[Tensor]
    tensor: Tensor

    def wait(self) -> None:
        arrived = self.way.get(timeout=PATIENCE)
        assert (arrived.shape, arrived.dtype) == (self.tensor.shape, self.tensor.dtype)
        self.tensor.copy_(arrived)


def on_all(meeting: Meeting, run: Callable[[int], T]) -> list[T]:
    """The results of ``run(rank)`` for all ranks, run concurrently. Raises the exception of the first rank that failed;
    the others stop waiting."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            results[rank] = run(rank)
        except BaseException as error:
            errors.append(error)
            meeting.abandon()

    ranks = range(meeting.tensor * meeting.pipeline)
    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    if errors:
        raise errors[0]
    return [results[rank] for rank in ranks]

"""Where this process stands among those that run one model together, and how they exchange tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor


class Arrival(Protocol):
    """What was sent and has perhaps not arrived yet."""

    def wait(self) -> object:
        """Waits for it."""
        ...


@dataclass(slots=True)
class Parallel:
    """One process's place, and its share of what is cut. By itself it exchanges nothing, as a process alone need not;
    see :class:`llmk.nn.distributed.Distributed`.

    ``tensor_size`` processes cut every layer between them (tensor parallel), ``num_stages`` groups of such processes
    hold the layers one after the other (pipeline parallel).
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    stage: int = 0
    num_stages: int = 1
    num_calls: int = 0
    """Collectives begun within the stage, whose processes are in step as long as their numbers agree."""

    @property
    def is_first(self) -> bool:
        """Whether this stage has the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage has the head, and samples."""
        return self.stage == self.num_stages - 1

    def layers(self, count: int) -> range:
        """Which of ``count`` layers this stage has."""
        return range(self.stage * count // self.num_stages, (self.stage + 1) * count // self.num_stages)

    def place(self, layer: int, count: int) -> int:
        """The place of ``layer``, one of ``count``, among those of this stage, where it is one of them."""
        return layer - self.layers(count).start

    def count(self, units: int) -> int:
        """How many of ``units`` (heads, say) this process has."""
        return max(1, units // self.tensor_size)

    def share(self, size: int, units: int = 0) -> slice:
        """This process's part of ``size`` rows or columns, which are ``units`` equal ones that stay whole (0: ``size``
        of them). Where there are fewer units than processes, several have the same."""
        units = units or size
        first = self.tensor_rank * units // self.tensor_size
        return slice(first * size // units, (first + self.count(units)) * size // units)

    def shares(self, parts: Sequence[tuple[int, int]]) -> list[slice]:
        """This process's part of each of ``parts``, of so many rows and units, that follow one another."""
        starts = accumulate((size for size, _ in parts), initial=0)
        kept = [self.share(size, units) for size, units in parts]
        return [slice(start + run.start, start + run.stop) for start, run in zip(starts, kept, strict=False)]

    def padded_share(self, size: int) -> tuple[slice, int]:
        """This process's part of ``size`` rows that need not divide evenly, and the rows that every process sets aside
        for its own. Parts follow one another; only the last ones are shorter."""
        room = -(-size // self.tensor_size)
        start = min(self.tensor_rank * room, size)
        return slice(start, min(start + room, size)), room

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every process's ``x`` of this stage. ``x`` itself may become it."""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Every process's ``x`` of this stage, one after the other along the last dimension."""
        return x

    def added_up(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``run``, the sum of its results over this stage's processes; where that is one, ``run`` itself."""
        if self.tensor_size == 1:
            return run
        return lambda *args, **options: self.all_reduce(run(*args, **options))

    def barrier(self) -> None:
        """Waits for all processes, of all stages."""

    def send(self, tensor: Tensor, stage: int) -> None:
        """Hands ``tensor``, which is contiguous, to the same tensor rank of ``stage``."""
        raise ValueError(f"a process alone has no stage {stage}")

    def receive(self, tensor: Tensor, stage: int) -> Arrival:
        """Begins to receive into ``tensor`` what the same tensor rank of ``stage`` sends."""
        raise ValueError(f"a process alone has no stage {stage}")

    def hand_on(self, *tensors: Tensor) -> None:
        """At the end of a stage but the last: sends what it made to the next."""
        for tensor in tensors:
            self.send(tensor.contiguous(), self.stage + 1)

    def take_over(self, shape: tuple[int, ...], dtypes: Sequence[torch.dtype], device: torch.device) -> list[Tensor]:
        """At the beginning of a stage but the first: waits for what the one before hands on, tensors of ``dtypes``."""
        tensors = [torch.empty(shape, dtype=dtype, device=device) for dtype in dtypes]
        for arrival in [self.receive(tensor, self.stage - 1) for tensor in tensors]:
            arrival.wait()
        return tensors

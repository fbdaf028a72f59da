"""Where this process stands among those that run one model together, and how they exchange tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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

    def count(self, units: int) -> int:
        """How many of ``units`` (heads, say) this process has."""
        return max(1, units // self.tensor_size)

    def share(self, size: int, units: int = 0) -> slice:
        """This process's part of ``size`` rows or columns, which are ``units`` equal ones that stay whole (0: ``size``
        of them). Where there are fewer units than processes, several have the same."""
        units = units or size
        first = self.tensor_rank * units // self.tensor_size
        return slice(first * size // units, (first + self.count(units)) * size // units)

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

    def send(self, *tensors: Tensor) -> None:
        """Hands what a stage made to the same tensor rank of the next."""
        raise ValueError("a process alone has no next stage")

    def receive(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Waits for the ``count`` tensors of one shape that the stage before hands on."""
        raise ValueError("a process alone has no stage before")

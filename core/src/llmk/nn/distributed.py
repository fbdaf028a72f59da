"""Processes that run one model together, joined by ``torch.distributed``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llmk.nn.parallel import Arrival, Parallel


@dataclass(slots=True)
class Distributed(Parallel):
    """One of ``tensor_size * num_stages`` processes. Ranks count through the first stage, then through the next.

    ``in_order`` adds up by rank whatever the size of a tensor is, of which a backend's own order may depend.
    """

    in_order: bool = False
    _group: Any = field(init=False)

    def join(self, backend: str, store: str, device: torch.device) -> None:
        """Meets the other processes over a file that all of them name; blocks until they are there.

        Args:
            backend: that of ``torch.distributed``.
            store: path of the file, which need not exist yet.
            device: this process's.
        """
        size = self.tensor_size * self.num_stages
        meeting = dist.FileStore(store, size)  # type: ignore[attr-defined]
        own = None if device.index is None else device
        rank = self._rank(self.stage)
        dist.init_process_group(backend, store=meeting, rank=rank, world_size=size, device_id=own)
        if self.num_stages == 1:
            self._group = dist.group.WORLD  # another one would listen on ports of its own, for nothing
            return
        stages = [range(start, start + self.tensor_size) for start in range(0, size, self.tensor_size)]
        self._group = [dist.new_group(list(ranks)) for ranks in stages][self.stage]

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.in_order and self.tensor_size > 2:  # of two, the order does not matter
            return reduce(torch.add, self._gathered(x))
        self.num_calls += 1
        total = x.contiguous()
        dist.all_reduce(total, group=self._group)
        return total

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._gathered(x), dim=-1)

    def send(self, tensor: Tensor, stage: int) -> None:
        dist.send(tensor, self._rank(stage))

    def receive(self, tensor: Tensor, stage: int) -> Arrival:
        arrival = dist.irecv(tensor, self._rank(stage))
        assert arrival is not None
        return arrival

    def _gathered(self, x: Tensor) -> list[Tensor]:
        self.num_calls += 1
        parts = [x.new_empty(x.shape) for _ in range(self.tensor_size)]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return parts

    def _rank(self, stage: int) -> int:
        return stage * self.tensor_size + self.tensor_rank

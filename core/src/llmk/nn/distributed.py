"""Tensor and pipeline parallelism through ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llmk.api import AllReduce, Verdict
from llmk.nn.parallel import Parallel, PendingReceive


@dataclass(slots=True)
class Distributed(Parallel):
    """One of ``tensor_size * num_stages`` processes. Ranks number the processes of the first stage, then those of the
    next.

    ``in_order``: all-reduce sums in the order of the ranks, for bit-identical results. A backend's own order may depend
    on the tensor's size. ``own`` is the platform's all-reduce, if there is one.
    """

    in_order: bool = False
    own: AllReduce | None = field(default=None, init=False)
    _group: Any = field(init=False)

    def join(self, backend: str, store: Any, device: torch.device) -> None:
        """Connects to the other processes through a store that all of them have; blocks until all have joined.

        Args:
            backend: the ``torch.distributed`` backend, such as ``"gloo"``.
            store: a store of ``torch.distributed``, or the path of a file that is one; it need not exist yet.
            device: this process's device.
        """
        size = self.tensor_size * self.num_stages
        found = dist.FileStore(store, size) if isinstance(store, str) else store  # type: ignore[attr-defined]
        device_id = None if device.index is None else device
        rank = self._rank(self.stage)
        dist.init_process_group(backend, store=found, rank=rank, world_size=size, device_id=device_id)
        if self.num_stages == 1:
            self._group = dist.group.WORLD  # a second group would open ports of its own
            return
        stages = [range(start, start + self.tensor_size) for start in range(0, size, self.tensor_size)]
        self._group = [dist.new_group(list(ranks)) for ranks in stages][self.stage]

    def use_own(self, offer: Callable[[Any, torch.device], AllReduce | Verdict], device: torch.device) -> str:
        """Has all-reduces done by what ``offer`` returns, for the tensors that it takes; all ranks of a stage call it.
        Returns what does them, for the log."""
        found = offer(self._group, device)
        if isinstance(found, Verdict):
            return f"by torch.distributed ({'; '.join(map(str, found.reasons))})"
        self.own = found
        return str(found)

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.own is not None and self.own.takes(x.numel() * x.element_size(), x.dtype):
            self.num_calls += 1
            return self.own(x)
        if self.in_order and self.tensor_size > 2:  # of two, the order does not matter
            wide = torch.promote_types(x.dtype, torch.float32)  # as the platform's own, so that sizes don't matter
            return reduce(torch.add, self._all_gather(x).to(wide).unbind()).to(x.dtype)
        self.num_calls += 1
        total = x.contiguous()
        dist.all_reduce(total, group=self._group)
        return total

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        found = None if self.own is None else self.own.add_rms_norm(x, residual, weight, eps)
        self.num_calls += found is not None
        return found

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._all_gather(x).unbind(), dim=-1)

    def send(self, tensor: Tensor, stage: int) -> None:
        dist.send(tensor, self._rank(stage))

    def receive(self, tensor: Tensor, stage: int) -> PendingReceive:
        pending = dist.irecv(tensor, self._rank(stage))
        assert pending is not None
        return pending

    def _all_gather(self, x: Tensor) -> Tensor:
        """``[ranks, ...]``."""
        self.num_calls += 1
        parts = x.new_empty(self.tensor_size * x.numel())
        dist.all_gather_into_tensor(parts, x.reshape(-1), group=self._group)
        return parts.view(self.tensor_size, *x.shape)

    def _rank(self, stage: int) -> int:
        return stage * self.tensor_size + self.tensor_rank

"""This process's tensor-parallel and pipeline-parallel rank, and how ranks exchange tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor


class PendingReceive(Protocol):
    """A receive that may not be complete yet."""

    def wait(self) -> object:
        """Waits until the tensor has arrived."""
        ...


@dataclass(slots=True)
class Parallel:
    """The ranks of one process, and its share of what is sharded. This base is for a single process and communicates
    nothing; see :class:`llmk.nn.distributed.Distributed`.

    ``tensor_size`` processes shard every layer (tensor parallel); ``num_stages`` groups of such processes hold
    consecutive layers (pipeline parallel).
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    stage: int = 0
    num_stages: int = 1
    num_calls: int = 0
    """Collectives started within the stage. Its ranks are in step as long as their numbers are equal."""

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
        """How many of ``units`` (such as heads) this rank has."""
        return max(1, units // self.tensor_size)

    def share(self, size: int, units: int = 0) -> slice:
        """This rank's part of ``size`` rows or columns, which consist of ``units`` equal units that are never split (0:
        ``size`` units). If there are fewer units than ranks, several ranks have the same part."""
        units = units or size
        first = self.tensor_rank * units // self.tensor_size
        return slice(first * size // units, (first + self.count(units)) * size // units)

    def shares(self, parts: Sequence[tuple[int, int]]) -> list[slice]:
        """This rank's part of each of ``parts``, given as (rows, units), as runs of the rows of all parts together."""
        starts = accumulate((size for size, _ in parts), initial=0)
        kept = [self.share(size, units) for size, units in parts]
        return [slice(start + run.start, start + run.stop) for start, run in zip(starts, kept, strict=False)]

    def padded_share(self, size: int) -> tuple[slice, int]:
        """This rank's part of ``size`` rows that need not divide evenly, and the rows that every rank allocates for its
        part. Parts are consecutive; only the last ones may be shorter."""
        room = -(-size // self.tensor_size)
        start = min(self.tensor_rank * room, size)
        return slice(start, min(start + room, size)), room

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over the ranks of this stage. It may be computed in place."""
        return x

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """The norm of ``residual`` plus the sum of ``x`` over the ranks of this stage, and that total, both ``[tokens,
        hidden]``, where the platform computes them at once (:meth:`llmk.api.AllReduce.add_rms_norm`); else ``None``."""
        return None

    def all_gather(self, x: Tensor) -> Tensor:
        """The ``x`` of each rank of this stage, concatenated along the last dimension."""
        return x

    def all_reduced(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``run`` followed by an all-reduce of its result; with a single rank, ``run`` itself."""
        if self.tensor_size == 1:
            return run
        return lambda *args, **options: self.all_reduce(run(*args, **options))

    def barrier(self) -> None:
        """Waits for all processes of all stages."""

    def send(self, tensor: Tensor, stage: int) -> None:
        """Sends ``tensor``, which is contiguous, to the same tensor rank of ``stage``."""
        raise ValueError(f"a single process has no stage {stage}")

    def receive(self, tensor: Tensor, stage: int) -> PendingReceive:
        """Starts to receive a tensor from the same tensor rank of ``stage`` into ``tensor``."""
        raise ValueError(f"a single process has no stage {stage}")

    def send_to_next_stage(self, *tensors: Tensor) -> None:
        """Called at the end of every stage but the last: sends its output to the next stage."""
        for tensor in tensors:
            self.send(tensor.contiguous(), self.stage + 1)

    def receive_from_previous_stage(
        self, wanted: Sequence[tuple[tuple[int, ...], torch.dtype]], device: torch.device
    ) -> list[Tensor]:
        """Called at the start of every stage but the first: waits for the previous stage's output, tensors of the
        ``wanted`` shapes and dtypes."""
        tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in wanted]
        for pending in [self.receive(tensor, self.stage - 1) for tensor in tensors]:
            pending.wait()
        return tensors

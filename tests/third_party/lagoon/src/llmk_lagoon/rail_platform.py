"""The platform's run-time half: threads, memory as tensors take it, and sums over ranks that are the same on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from llmk.api import AllReduce, Compiling, Graphs, Host, PlatformFacts, Verdict

from .rail_machine import default_threads, memory_available, memory_total


class LagoonDevice:
    """The device facet."""

    def torch_device(self, index: int) -> torch.device:
        """All ranks share the CPUs."""
        return torch.device("cpu")

    def setup(self, index: int, threads: int = 0) -> None:
        """Sets the number of threads, and nothing else."""
        torch.set_num_threads(threads or default_threads(Host()))

    def synchronize(self) -> None:
        """Does nothing: operators end before they return."""


class LagoonMemory:
    """The memory facet, in bytes."""

    def total(self) -> int:
        """Of the machine, or of the process's control groups."""
        return memory_total(Host())

    def available(self) -> int:
        """What control groups leave of it, too."""
        return memory_available(Host())

    def measure(self, run: Callable[[], None]) -> int | None:
        """The most that tensors which operators made in ``run`` held at a time."""
        counted = _Storages()
        with counted:
            run()
        return counted.most


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the memory of what each operator returns, and at which of it was freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {key for key, _ in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        expired = [key for key, (held, _) in self._live.items() if held.expired()]  # type: ignore[no-untyped-call]
        for key in expired:
            del self._live[key]
        for key, storage in _storages(result):
            if key not in given:
                self._live[key] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        self.most = max(self.most, sum(size for _, size in self._live.values()))
        return result


def _storages(values: Any) -> list[tuple[int, Any]]:
    """The storages of all tensors in ``values``, with what identifies each."""
    storages = [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return [(storage._cdata, storage) for storage in storages]


class OrderedSum:
    """Follows ``llmk.api.AllReduce``: every rank gets all tensors, and adds them in the order of the ranks."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group, self._size = group, dist.get_world_size(group)

    def __str__(self) -> str:
        return f"ordered sum of {self._size} ranks"

    def takes(self, num_bytes: int, dtype: torch.dtype) -> bool:
        """Numbers of any size; what else there is to sum is exact in any order."""
        return dtype.is_floating_point

    def __call__(self, x: Tensor) -> Tensor:
        """The sum, in a tensor of its own. Bytes are exchanged, so that any dtype can be."""
        own = x.contiguous().view(-1).view(torch.uint8)
        pieces = [torch.empty_like(own) for _ in range(self._size)]
        dist.all_gather(pieces, own, group=self._group)
        wide = torch.promote_types(x.dtype, torch.float32)
        total = pieces[0].view(x.dtype).to(wide, copy=True)
        for piece in pieces[1:]:
            total += piece.view(x.dtype)
        return total.to(x.dtype).view(x.shape)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """Separate launches cost nothing here."""
        return None


class LagoonCollectives:
    """The collectives facet."""

    backend = "gloo"
    recordable = False

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """All ranks get one."""
        return OrderedSum(group)


class LagoonPlatform:
    """Follows ``llmk.api.Platform``. Steps are not recorded, and nothing is compiled."""

    graphs: Graphs | None = None
    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = LagoonDevice()
        self.memory = LagoonMemory()
        self.collectives = LagoonCollectives()

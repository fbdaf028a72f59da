"""The platform's run-time half. What torch has for every accelerator is used as such; graphs alone are
``torch.cuda``'s, as torch's ROCm build calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from llmk.api import AllReduce, Collectives, Compiling, Device, Graphs, Host, Memory, PlatformFacts, Verdict, no
from llmk_rocm.graphs import HIPGraphs
from llmk_rocm.visible import device_index

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ROCmDevice:
    """The visible GPUs of the architecture that the plan is for, one per worker."""

    def __init__(self, device_type: str) -> None:
        self._type = device_type

    def torch_device(self, index: int) -> torch.device:
        """The device of local rank ``index``, by HIP's number: GPUs of other architectures are skipped."""
        return torch.device(self._type, device_index(Host(), index))

    def setup(self, index: int, threads: int = 0) -> None:
        """Makes it the current device, and sets torch's compute threads on the host; 0: one, since the host does little
        but launch."""
        torch.accelerator.set_device_index(self.torch_device(index))
        torch.set_num_threads(threads or 1)

    def synchronize(self) -> None:
        """Waits for all streams of the current device."""
        torch.accelerator.synchronize()


class ROCmMemory:
    """The current device's memory."""

    def total(self) -> int:
        """Total bytes, without those that the driver reserves."""
        return torch.accelerator.get_memory_info()[1]

    def available(self) -> int:
        """Bytes that can be allocated now; other processes' memory is not available.

        torch's allocator gives its unused memory back first, so that it counts as free. This waits for the device: it
        is meant for startup, not for a step.
        """
        torch.accelerator.empty_cache()
        return torch.accelerator.get_memory_info()[0]

    def measure(self, run: Callable[[], None]) -> int | None:
        """The peak of torch's allocated tensors, without what its allocator keeps for reuse."""
        before = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        run()
        torch.accelerator.synchronize()
        return torch.accelerator.max_memory_allocated() - before


class RCCLCollectives:
    """Collectives through RCCL, which torch's ROCm build calls by NCCL's name."""

    backend = "nccl"
    recordable = True

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """None."""
        return no("not_offered", found="RCCL alone")


class ROCmPlatform:
    """Follows ``llmk.api.Platform``. Creating one opens no device; :meth:`ROCmDevice.setup` does. Kernels are compiled
    where they are first launched, which Triton keeps on disk."""

    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device: Device = ROCmDevice(facts.device_type)
        self.memory: Memory = ROCmMemory()
        self.graphs: Graphs | None = HIPGraphs() if "graphs" in facts.features else None
        self.collectives: Collectives | None = RCCLCollectives()

"""The platform's run-time half."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from llmk.api import AllReduce, Collectives, Compiling, Device, Graphs, Memory, PlatformFacts, Verdict, no
from llmk_cuda.compiling import TritonCompiling, read_compiler
from llmk_cuda.graphs import CUDAGraphs
from llmk_cuda.visible import number_by_bus

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class CUDADevice:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` shows, one per worker; ``compiles`` says whether kernels will be."""

    def __init__(self, compiles: bool) -> None:
        self._compiles = compiles

    def torch_device(self, index: int) -> torch.device:
        """``cuda:index``."""
        return torch.device("cuda", index)

    def setup(self, index: int, threads: int = 0) -> None:
        """Makes ``cuda:index`` the current device, and sets torch's compute threads on the host; 0: one, since the host
        does little but launch."""
        number_by_bus()
        if self._compiles:
            read_compiler()
        torch.cuda.set_device(index)
        torch.set_num_threads(threads or 1)

    def synchronize(self) -> None:
        """Waits for all streams of the current device."""
        torch.cuda.synchronize()


class CUDAMemory:
    """The current device's memory."""

    def total(self) -> int:
        """Total bytes, without those that the driver reserves."""
        return torch.cuda.mem_get_info()[1]

    def available(self) -> int:
        """Bytes that can be allocated now; other processes' memory is not available.

        torch's allocator gives its unused memory back to the driver first, so that it counts as free. This synchronizes
        with the device: it is meant for startup, not for a step.
        """
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def measure(self, run: Callable[[], None]) -> int | None:
        """The peak of torch's allocated tensors. Memory that its allocator caches is not counted: it is returned to the
        driver when a later allocation needs it."""
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


class NCCLCollectives:
    """Collectives through NCCL, but for sums that kernels of our own do faster, where kernels are compiled."""

    backend = "nccl"
    recordable = True

    def __init__(self, compiles: bool) -> None:
        self._compiles = compiles

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """Through memory that GPUs read and write of each other, by Triton's kernels."""
        if not self._compiles:
            return no("package_missing", wanted="triton")
        from llmk_cuda.all_reduce import offer

        return offer(group, device)


class CUDAPlatform:
    """Follows ``llmk.api.Platform``. Creating one does not initialize CUDA; :meth:`CUDADevice.setup` does."""

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        compiles = "triton" in facts.features
        self.device: Device = CUDADevice(compiles)
        self.memory: Memory = CUDAMemory()
        self.graphs: Graphs | None = CUDAGraphs()
        self.compiling: Compiling | None = TritonCompiling() if compiles else None
        self.collectives: Collectives | None = NCCLCollectives(compiles)

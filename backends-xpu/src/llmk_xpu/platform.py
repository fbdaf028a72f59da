"""The platform's run-time half. What torch has for every accelerator is used as such; graphs alone are
``torch.xpu``'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from llmk.api import AllReduce, Collectives, Compiling, Device, Graphs, Host, Memory, PlatformFacts, Verdict, no
from llmk_xpu.graphs import SYCLGraphs
from llmk_xpu.memory import XPUMemory
from llmk_xpu.visible import device_index

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class XPUDevice:
    """The visible GPUs of the architecture that the plan is for, one per worker."""

    def __init__(self, device_type: str) -> None:
        self._type = device_type

    def torch_device(self, index: int) -> torch.device:
        """The device of local rank ``index``, by torch's number: GPUs of other architectures are skipped."""
        return torch.device(self._type, device_index(Host(), index))

    def setup(self, index: int, threads: int = 0) -> None:
        """Makes it the current device, and sets torch's compute threads on the host; 0: one, since the host does little
        but launch."""
        torch.accelerator.set_device_index(self.torch_device(index))
        torch.set_num_threads(threads or 1)

    def synchronize(self) -> None:
        """Waits for all streams of the current device."""
        torch.accelerator.synchronize()


class XCCLCollectives:
    """Collectives through oneCCL, which torch's XPU build has as XCCL."""

    backend = "xccl"
    recordable = False

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """None."""
        return no("not_offered", found="oneCCL alone")


class XPUPlatform:
    """Follows ``llmk.api.Platform``. Creating one opens no device; :meth:`XPUDevice.setup` does. Kernels are compiled
    where they are first launched, which Triton and oneDNN keep, on disk and in memory."""

    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device: Device = XPUDevice(facts.device_type)
        self.memory: Memory = XPUMemory()
        self.graphs: Graphs | None = SYCLGraphs() if "graphs" in facts.features else None
        self.collectives: Collectives | None = XCCLCollectives()

"""The platform's run-time half. What torch has for every accelerator is used as such; graphs alone are
``torch.xpu``'s."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from llmk.api import AllReduce, Collectives, Compiling, Device, Graphs, Host, Memory, PlatformFacts, Verdict, no
from llmk.reference.accelerator import AcceleratorDevice
from llmk_xpu.graphs import SYCLGraphs
from llmk_xpu.memory import XPUMemory
from llmk_xpu.visible import device_index

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


class XCCLCollectives:
    """Collectives through oneCCL, which torch's XPU build has as XCCL."""

    backend = "xccl"
    recordable = False

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """None."""
        return no("not_offered", found="oneCCL alone")


class XPUPlatform:
    """Follows ``llmk.api.Platform``. Creating one opens no device; the device's ``setup`` does. GPUs of other
    architectures than the plan's are skipped. Kernels are compiled where they are first launched, which Triton and
    oneDNN keep, on disk and in memory."""

    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device: Device = AcceleratorDevice(facts.device_type, partial(device_index, Host()))
        self.memory: Memory = XPUMemory()
        self.graphs: Graphs | None = SYCLGraphs() if "graphs" in facts.features else None
        self.collectives: Collectives | None = XCCLCollectives()

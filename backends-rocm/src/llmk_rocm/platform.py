"""The platform's run-time half. What torch has for every accelerator is used as such; graphs alone are
``torch.cuda``'s, as torch's ROCm build calls them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from llmk.api import AllReduce, Collectives, Compiling, Device, Graphs, Host, Memory, PlatformFacts, Verdict, no
from llmk.reference.accelerator import AcceleratorDevice, AcceleratorMemory
from llmk_rocm.graphs import HIPGraphs
from llmk_rocm.visible import device_index

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


class RCCLCollectives:
    """Collectives through RCCL, which torch's ROCm build calls by NCCL's name."""

    backend = "nccl"
    recordable = True

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """None."""
        return no("not_offered", found="RCCL alone")


class ROCmPlatform:
    """Follows ``llmk.api.Platform``. Creating one opens no device; the device's ``setup`` does. GPUs of other
    architectures than the plan's are skipped. Kernels are compiled where they are first launched, which Triton keeps on
    disk."""

    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device: Device = AcceleratorDevice(facts.device_type, partial(device_index, Host()))
        self.memory: Memory = AcceleratorMemory()
        self.graphs: Graphs | None = HIPGraphs() if "graphs" in facts.features else None
        self.collectives: Collectives | None = RCCLCollectives()

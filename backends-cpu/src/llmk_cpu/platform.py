"""The platform's run-time half."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import torch

from llmk.api import AllReduce, Compiling, Graphs, Host, PlatformFacts, Verdict, no
from llmk_cpu.graphs import CPUGraphs
from llmk_cpu.machine import cores, memory_free, memory_limit
from llmk_cpu.native import library
from llmk_cpu.native.specs import GRAPHS

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class CPUDevice:
    """One device: all cores that the process may use."""

    def torch_device(self, index: int) -> torch.device:
        """The CPU device, the same for all ranks."""
        return torch.device("cpu")

    def setup(self, index: int, threads: int = 0) -> None:
        """Sets the compute threads of torch and of native kernels; 0: one per physical core. The operating system
        places them. gloo connects processes only within this machine."""
        count = threads or cores(Host()).advised_threads
        torch.set_num_threads(count)
        if library.path() is not None:
            library.library().set_threads(count)
        addresses = psutil.net_if_addrs().items()
        if local := [name for name, found in addresses if any(each.address == "127.0.0.1" for each in found)]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", local[0])

    def synchronize(self) -> None:
        """Does nothing: torch's CPU operators are synchronous."""


class CPUMemory:
    """The process's memory: the machine's, or what its container may use, by the files of ``host``."""

    def __init__(self, host: Host | None = None) -> None:
        self._host = host or Host()

    def total(self) -> int:
        """Total bytes."""
        return memory_limit(self._host) or psutil.virtual_memory().total

    def available(self) -> int:
        """Bytes that could be allocated now without swapping."""
        return memory_free(self._host) or psutil.virtual_memory().available

    def measure(self, run: Callable[[], None]) -> int | None:
        """Calls ``run`` and returns ``None``: torch does not count CPU allocations."""
        run()
        return None


class GlooCollectives:
    """Collectives through gloo."""

    backend = "gloo"
    recordable = False

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """None."""
        return no("not_offered", found="gloo alone")


class CPUPlatform:
    """Follows ``llmk.api.Platform``. There are graphs where the wheel has native kernels, and no kernels to compile."""

    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = CPUDevice()
        self.memory = CPUMemory()
        self.graphs: Graphs | None = CPUGraphs() if GRAPHS in facts.features else None
        self.collectives = GlooCollectives()

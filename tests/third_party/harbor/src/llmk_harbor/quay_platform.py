"""The platform ``numa`` at run time: torch's CPU device, bound to a NUMA node."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch.autograd.profiler import profile
from torch.distributed import ProcessGroup

from llmk.api import AllReduce, Compiling, Graphs, Host, PlatformFacts, Verdict, no
from llmk_harbor.quay_machine import Node, all_nodes, available_bytes, cores, total_bytes, visible_nodes


class NumaDevice:
    """A node per local rank; ranks beyond the last node start again with the first."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._nodes = visible_nodes(host) or all_nodes(host)
        self.node = self._nodes[0]

    def torch_device(self, index: int) -> torch.device:
        """torch has one device for all nodes."""
        return torch.device("cpu")

    def setup(self, index: int, threads: int = 0) -> None:
        """Binds the process to the node's CPUs, so that its memory is the node's, too, and sets torch's threads: by
        default one for each core of the node that the process may use.

        A process that was bound elsewhere stays where it is: who bound it knows more."""
        self.node = self._nodes[index % len(self._nodes)]
        usable = os.sched_getaffinity(0)
        if own := usable & set(self.node.cpus):
            os.sched_setaffinity(0, own)
            usable = own
        torch.set_num_threads(threads or cores(self._host, sorted(usable)))

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""


class NumaMemory:
    """The memory of the node that was set up."""

    def __init__(self, host: Host, node: Callable[[], Node]) -> None:
        self._host, self._node = host, node

    def total(self) -> int:
        """As in the facts."""
        return total_bytes(self._host, self._node())

    def available(self) -> int:
        """As the kernel counts it now."""
        return available_bytes(self._host, self._node())

    def measure(self, run: Callable[[], None]) -> int | None:
        """The peak of what torch allocates, which its profiler reports, and its C++ code's scratch memory with it."""
        with profile(use_cpu=True, profile_memory=True) as profiled:
            run()
        assert profiled.kineto_results is not None
        changes = [each for each in profiled.kineto_results.events() if each.name() == "[memory]"]
        now = peak = 0
        for change in sorted(changes, key=lambda each: each.start_ns()):
            now += change.nbytes()
            peak = max(peak, now)
        return peak


class NumaCollectives:
    """Ranks exchange by gloo, over the machine's memory or network."""

    backend = "gloo"
    recordable = False

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """There is none but gloo's."""
        return no("not_offered", wanted="an all-reduce of the platform's own", found="gloo's alone")


class NumaPlatform:
    """Follows :class:`llmk.api.Platform`."""

    graphs: Graphs | None = None
    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        host = Host()
        self.facts = facts
        self.device = NumaDevice(host)
        self.memory = NumaMemory(host, lambda: self.device.node)
        self.collectives = NumaCollectives()

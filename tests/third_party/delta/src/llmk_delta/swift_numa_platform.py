"""The run-time half of the platform whose devices are NUMA nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from llmk.api import AllReduce, Compiling, Graphs, Host, PlatformFacts, Verdict, no

from .swift_numa import Node, all_nodes, core_count, memory_available, memory_total, visible_nodes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class NodeDevice:
    """The device facet. ``number`` is the node's; before ``setup``, that of the first."""

    def __init__(self) -> None:
        self.number = self._node(0).number

    def torch_device(self, index: int) -> torch.device:
        """Torch knows the processor alone."""
        return torch.device("cpu")

    def setup(self, index: int, threads: int = 0) -> None:
        """Binds the process to the node, with a thread for each core of it that the process may use."""
        node = self._node(index)
        self.number = node.number
        cpus = node.cpus & os.sched_getaffinity(0)
        if cpus:
            os.sched_setaffinity(0, cpus)
        torch.set_num_threads(threads or core_count(Host(), frozenset(os.sched_getaffinity(0))))

    def synchronize(self) -> None:
        """Torch's operators on the processor are synchronous."""

    def _node(self, index: int) -> Node:
        """Ranks may share nodes, so that indices go round."""
        host = Host()
        nodes = all_nodes(host)
        visible = visible_nodes(host, nodes) or nodes
        return visible[index % len(visible)]


class NodeMemory:
    """The memory facet, in bytes: of the node that the process is bound to."""

    def __init__(self, device: NodeDevice) -> None:
        self._device = device

    def total(self) -> int:
        """The node's memory, or less where a control group says so."""
        return memory_total(Host(), self._device.number)

    def available(self) -> int:
        """What is free of it."""
        return memory_available(Host(), self._device.number)

    def measure(self, run: Callable[[], None]) -> int | None:
        """Calls ``run``. Nothing counts what torch allocates here."""
        run()
        return None


class NodeCollectives:
    """The collectives facet: Gloo's."""

    backend = "gloo"
    recordable = False

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """None of its own."""
        return no("no_all_reduce", wanted="an all-reduce between nodes", found="gloo")


class DeltaPlatform:
    """Follows ``llmk.api.Platform``."""

    graphs: Graphs | None = None
    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = NodeDevice()
        self.memory = NodeMemory(self.device)
        self.collectives = NodeCollectives()

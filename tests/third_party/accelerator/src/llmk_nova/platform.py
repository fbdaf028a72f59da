"""The platform's run-time half. Importing it loads the device's library."""

from __future__ import annotations

from collections.abc import Callable

import torch

from llmk.api import Collectives, Compiling, Graphs, PlatformFacts
from llmk_nova.device import set_device, synchronize


class NovaDevice:
    """The devices that ``NOVA_VISIBLE_DEVICES`` shows, one per worker."""

    def torch_device(self, index: int) -> torch.device:
        """``nova:index``."""
        return torch.device("nova", index)

    def setup(self, index: int, threads: int = 0) -> None:
        """Makes ``nova:index`` the current device. The simulation runs on the host's cores: ``threads`` of torch's;
        0: as many as torch takes."""
        set_device(index)
        if threads:
            torch.set_num_threads(threads)

    def synchronize(self) -> None:
        """Waits for the current device."""
        synchronize()


class NovaMemory:
    """The current device's memory."""

    def total(self) -> int:
        """Bytes there are."""
        return torch.accelerator.get_memory_info()[1]

    def available(self) -> int:
        """Bytes that no tensor has."""
        return torch.accelerator.get_memory_info()[0]

    def measure(self, run: Callable[[], None]) -> int | None:
        """The most that tensors took at a time, beside those that were there."""
        before = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        run()
        synchronize()
        return torch.accelerator.max_memory_allocated() - before


class NovaPlatform:
    """Follows ``llmk.api.Platform``. There are no graphs, nothing is compiled, devices don't talk to one another."""

    graphs: Graphs | None = None
    compiling: Compiling | None = None
    collectives: Collectives | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = NovaDevice()
        self.memory = NovaMemory()

"""The platform's run-time half: how the device is set up, waited for and measured."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch

from llmk.api import Collectives, Compiling, Graphs, PlatformFacts


class AcmeDevice:
    """The device facet."""

    def torch_device(self, index: int) -> torch.device:
        """For a new device type, ``torch.device("acme", index)``."""
        return torch.device("cpu")

    def setup(self, index: int, threads: int = 0) -> None:
        """Selects the device and sets the host's threads, once per process."""
        torch.set_num_threads(threads or psutil.cpu_count(logical=False) or 1)

    def synchronize(self) -> None:
        """Does nothing: torch's CPU operators are synchronous."""


class AcmeMemory:
    """The memory facet, in bytes."""

    def total(self) -> int:
        """The device's memory."""
        return int(psutil.virtual_memory().total)

    def available(self) -> int:
        """What could be allocated now."""
        return int(psutil.virtual_memory().available)

    def measure(self, run: Callable[[], None]) -> int | None:
        """Calls ``run``; a device whose allocator counts returns the peak memory."""
        run()
        return None


class AcmePlatform:
    """Follows ``llmk.api.Platform``. A facet that the platform lacks is ``None``."""

    graphs: Graphs | None = None
    compiling: Compiling | None = None
    collectives: Collectives | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = AcmeDevice()
        self.memory = AcmeMemory()

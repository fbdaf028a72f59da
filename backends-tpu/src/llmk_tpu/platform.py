"""The platform's run-time half. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import psutil

from llmk.api import Collectives, Compiling, Graphs, PlatformFacts, SelectionError


class TPUDevice:
    """The devices of this process. JAX sets them up when it is first used."""

    def torch_device(self, index: int) -> NoReturn:
        """Raises SelectionError: torch can't use a TPU."""
        raise SelectionError("torch has no device for TPUs", hint="name another platform with --platform.use")

    def setup(self, index: int, threads: int = 0) -> None:
        """Does nothing: XLA has threads of its own."""

    def synchronize(self) -> None:
        """Does nothing: the executor waits for what it reads."""


class TPUMemory:
    """The memory of the first device; of the host, where JAX emulates one."""

    def total(self) -> int:
        """Total bytes."""
        return int(_stats().get("bytes_limit", psutil.virtual_memory().total))

    def available(self) -> int:
        """Bytes that can be allocated now."""
        stats = _stats()
        if "bytes_limit" not in stats:
            return int(psutil.virtual_memory().available)
        return int(stats["bytes_limit"] - stats["bytes_in_use"])

    def measure(self, run: Callable[[], None]) -> int | None:
        """Calls ``run`` and returns ``None``: the executor knows what a program needs from its compiler."""
        run()
        return None


class TPUPlatform:
    """Follows ``llmk.api.Platform``. There are no graphs and no kernels: whole steps are compiled."""

    graphs: Graphs | None = None
    compiling: Compiling | None = None
    collectives: Collectives | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = TPUDevice()
        self.memory = TPUMemory()


def _stats() -> dict[str, Any]:
    import jax

    return jax.local_devices()[0].memory_stats() or {}

"""The contract of a platform: facts that are known without touching a device, and facets that act on it.

A facet that a platform lacks is ``None``; nothing answers for it.
"""

from __future__ import annotations

import os
import platform as _platform
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmk.api.verdict import Verdict

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFacts:
    """What is known of a machine before anything runs on it.

    ``name`` and ``arch`` are what ``--on name/arch`` takes; ``arch_version`` orders the architectures of one
    ``arch_family``. ``features`` are open strings that kernels match on; ``"asynchronous"`` tells the engine too that
    the device is issued work and runs it behind the host. ``dtypes`` are the ones that run natively, best first.
    ``memory_bytes`` is the memory of one device (0: unknown), ``num_devices`` how many there are (0: unknown),
    ``shared_device`` whether several processes of one engine may work on the same.
    """

    name: str
    arch: str
    device_type: str
    """torch's device string without index."""
    arch_family: str = ""
    arch_version: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ("float32",)
    memory_bytes: int = 0
    num_devices: int = 1
    shared_device: bool = False
    device_name: str = ""

    @property
    def label(self) -> str:
        """``name/arch``."""
        return f"{self.name}/{self.arch}"


class Device(Protocol):
    """The device facet: addressing and waiting."""

    @abstractmethod
    def torch_device(self, index: int) -> torch.device:
        """The torch device of local rank ``index``."""
        ...

    @abstractmethod
    def setup(self, index: int, threads: int = 0) -> None:
        """Once per worker process, before the first allocation: select the device, set threads and library flags.

        ``threads`` are compute threads on the host, the process's share of ``platform.threads``; 0 for what the
        platform advises.
        """
        ...

    @abstractmethod
    def synchronize(self) -> None:
        """Returns when everything issued so far has run."""
        ...


class Memory(Protocol):
    """The memory facet, in bytes."""

    @abstractmethod
    def total(self) -> int:
        """The device's memory."""
        ...

    @abstractmethod
    def available(self) -> int:
        """What could be allocated now."""
        ...

    @abstractmethod
    def measure(self, run: Callable[[], None]) -> int | None:
        """Calls ``run`` and waits for it; returns the most that it needed at a time beside what was there: by so much
        less may a cache take. What an allocator keeps for later and would give back doesn't count, so that the order of
        allocations doesn't matter. ``None``: unknown."""
        ...


class Graphs(Protocol):
    """The graphs facet: capture a step once, replay it many times."""

    @abstractmethod
    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures ``run``, whose tensors must outlive the graph; returns the replay."""
        ...


class Compiling(Protocol):
    """The compiling facet: of kernels that are compiled when they are first launched."""

    @abstractmethod
    def ahead(self) -> AbstractContextManager[None]:
        """While it is entered, what would launch such a kernel begins to compile it, several at a time, and launches
        nothing: what the kernel would have written, and memory that nothing else fills, holds zeros. Leaving it waits
        until all are compiled, and raises what keeps one from being."""
        ...


class Collectives(Protocol):
    """The collectives facet."""

    @property
    @abstractmethod
    def backend(self) -> str:
        """Name of the ``torch.distributed`` backend."""
        ...

    @property
    @abstractmethod
    def recordable(self) -> bool:
        """Whether the platform's graphs may record steps in which processes exchange tensors."""
        ...


class Platform(Protocol):
    """A platform's run-time half, created in each worker from its :class:`PlatformFacts`."""

    facts: PlatformFacts
    device: Device
    memory: Memory
    graphs: Graphs | None
    compiling: Compiling | None
    collectives: Collectives | None

    def __init__(self, facts: PlatformFacts) -> None: ...


@dataclass(frozen=True, slots=True)
class Host:
    """What a platform's probe reads. ``root`` stands in front of every path, so that a fixture tree can play a
    machine."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    machine: str = field(default_factory=_platform.machine)
    system: str = field(default_factory=_platform.system)

    def path(self, path: str) -> Path:
        """``path`` (absolute) under this host's root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of a file, ``""`` where it can't be read."""
        try:
            return self.path(path).read_text(errors="replace")
        except OSError:
            return ""

    def has_module(self, name: str) -> bool:
        """Whether a Python module could be imported, without importing it."""
        try:
            return find_spec(name) is not None
        except (ImportError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class Probe:
    """A platform's answer: usable here or not and why, and the facts of what is here."""

    verdict: Verdict
    facts: PlatformFacts | None = None

"""The contract of a platform: facts, which are known without initialising a device, and facets, which operate on it.

A facet that a platform does not have is ``None``; there is no default implementation.
"""

from __future__ import annotations

import os
import platform as _platform
import re
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
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFacts:
    """Facts about a machine that are known before anything runs on it.

    ``name`` and ``arch`` are the parts of ``--on name/arch``. ``arch_version`` orders the architectures of one
    ``arch_family``. ``features`` are strings that kernels require, an open set; with ``"asynchronous"``, the device
    executes work asynchronously to the host, and the engine uses asynchronous scheduling. ``dtypes`` are the natively
    supported ones, best first. ``memory_bytes`` is the memory of one device (0: unknown), ``num_devices`` the number of
    devices (0: unknown). ``shared_device`` is whether several processes of one engine may use the same device.
    """

    name: str
    arch: str
    device_type: str
    """torch's device type, without an index; empty: torch can't use the device, so that an executor of a plugin
    (``llmk_executors``) must run the steps."""
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
    """The device facet: selection, setup and synchronization."""

    @abstractmethod
    def torch_device(self, index: int) -> torch.device:
        """The torch device of local rank ``index``. Raises SelectionError on a platform that torch can't use."""
        ...

    @abstractmethod
    def setup(self, index: int, threads: int = 0) -> None:
        """Selects the device, and sets threads and library flags. Called once per worker process, before the first
        allocation. It may bind the process to some of the CPUs that it may run on, and to no others.

        ``threads`` is the number of compute threads on the host: the process's share of ``platform.threads``, or 0 for
        the platform's default, at most one for each CPU that the process may run on.
        """
        ...

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until all submitted work has finished."""
        ...


class Memory(Protocol):
    """The memory facet, in bytes."""

    @abstractmethod
    def total(self) -> int:
        """The device's total memory."""
        ...

    @abstractmethod
    def available(self) -> int:
        """The memory that can be allocated now."""
        ...

    @abstractmethod
    def measure(self, run: Callable[[], None]) -> int | None:
        """Calls ``run``, waits for it, and returns its peak memory in addition to what was allocated before; the cache
        must leave that much free. Memory that the allocator keeps for reuse doesn't count, so that the order of
        allocations doesn't matter. ``None`` if unknown, as where nothing counts allocations: what steps
        take is then estimated from the model's sizes.

        What ``run`` raises is raised, and the next call measures as if nothing had been. With an
        allocator of torch: note what is allocated, reset the peak, run, synchronize, and return the peak less what was
        noted. Counting free memory of the device instead is wrong where others use
        it, and where the allocator reserves more than it hands out."""
        ...


class Graphs(Protocol):
    """The graphs facet: captures a step once and replays it many times.

    ``on_demand``: where it isn't 0, a capture costs nothing before its first replay, which runs the step and records
    it; then steps in which up to so many requests compute one token each are captured, for each number of requests, and
    no others, since more tokens leave a host nothing to save. 0: steps of some sizes are captured ahead, and padded.
    """

    on_demand: int

    @abstractmethod
    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Captures ``run``, whose tensors must outlive the graph; returns the replay.

        The replay returns what ``run`` returned: a tensor, or a tuple, list or dataclass of such. It is valid until any
        graph is replayed, so that all graphs may share memory. Each replay has run the step once, the first too. Where
        ``on_demand`` is 0, ``capture`` may call ``run`` several times itself, to warm up and to record; the values that
        it returned then mean nothing. An exception of ``run`` is raised, and other graphs go on to work; so is one of
        an operator in a later replay, after which this graph goes on to work, too, where the device does.

        ``run`` calls kernels of any kind, changes tensors in place (inputs, the cache), and reads nothing of a tensor
        on the host. Inputs are changed in place before a replay, which is issued on the current stream, without waiting
        for it.
        """
        ...

    @abstractmethod
    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """Calls both and returns what they returned. Neither uses what the other computes; within ``run`` of a capture,
        the replay may have the device compute both at the same time, such as on two streams. What is issued before
        the call is computed before both, and what is issued after it, after both. An exception of either is raised.

        ``return first(), second()`` is right everywhere.
        """
        ...


class Compiling(Protocol):
    """The compiling facet, for kernels that are compiled at their first launch."""

    @abstractmethod
    def ahead(self) -> AbstractContextManager[None]:
        """A context in which launching such a kernel only starts its compilation, several at a time. Kernels don't run:
        their outputs, and otherwise uninitialised memory, are zeros. On exit, it waits for all compilations, and raises
        the error of one that failed."""
        ...


class AllReduce(Protocol):
    """A sum of a tensor over the ranks of a process group, of the platform's own. All ranks call it on tensors of equal
    shape and dtype, in the same order.

    Ranks are added in order, in float32 or the wider dtype of the tensor, and rounded once: so all ranks have the same
    bits, and they don't depend on the tensor's size. ``str()`` of one is what a log calls it.
    """

    @abstractmethod
    def takes(self, num_bytes: int, dtype: torch.dtype) -> bool:
        """Whether it is to sum tensors of that size and dtype: where not, ``torch.distributed`` does. All ranks say the
        same."""
        ...

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Returns the sum of ``x``, of any shape; it may be computed in place. Where collectives are recordable, graphs
        can capture it, be replayed any number of times, and take turns."""
        ...

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """The sum of ``x``, rounded as by :meth:`__call__`, and what follows it between two blocks, in one launch.

        Args:
            x: ``[tokens, hidden]``; may be overwritten.
            residual: of the same shape; the same on all ranks.
            weight: ``[hidden]``, of the norm.
            eps: of the norm.

        Returns:
            The root-mean-square norm of ``residual`` plus the sum, and ``residual`` plus the sum, both rounded as by
            ``add_rms_norm`` (``llmk.reference.norms``); ``None`` where separate launches are to do it. All ranks return
            the same.
        """
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
        """Whether the platform's graphs can capture steps that use collectives."""
        ...

    @abstractmethod
    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """An all-reduce of the platform's own for tensors on ``device``, or why there is none. All ranks of ``group``
        call it at the start, on devices that are set up; either all of them get one, or none does."""
        ...


class Platform(Protocol):
    """The run-time part of a platform, created in each worker from :class:`PlatformFacts`."""

    facts: PlatformFacts
    device: Device
    memory: Memory
    graphs: Graphs | None
    compiling: Compiling | None
    collectives: Collectives | None

    def __init__(self, facts: PlatformFacts) -> None: ...


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as a platform's probe sees it. ``root`` is prepended to every path, so that tests can use a folder of
    fixtures as a machine. ``options`` are the section of the probe's plugin in the configuration, as it is written: not
    yet checked."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    machine: str = field(default_factory=_platform.machine)
    system: str = field(default_factory=_platform.system)
    options: Mapping[str, Any] = field(default_factory=dict)

    def path(self, path: str) -> Path:
        """``path`` (absolute) under this host's root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of a file; ``""`` if it can't be read."""
        try:
            return self.path(path).read_text(errors="replace")
        except (OSError, ValueError):  # the latter for a path that no file can have
            return ""

    def has_module(self, name: str) -> bool:
        """Whether a Python module can be found, without importing it."""
        try:
            return find_spec(name) is not None
        except (ImportError, ValueError):
            return False


def torch_version_file() -> str | None:
    """The text in which the installed torch says how it was built, read without importing it; ``None`` where torch is
    not installed."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    return file.read_text() if file.exists() else ""


def parse_torch_versions(text: str) -> dict[str, str]:
    """By name the versions in :func:`torch_version_file`'s text: ``__version__``, torch's own or ``"unknown"``, and
    those of what it was built with, such as a vendor's toolkit."""
    return {"__version__": "unknown"} | dict(re.findall(r"^(\w+)\b[^=\n]*= '([^']*)'", text, re.MULTILINE))


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a platform's probe: whether the platform is usable on this machine, and its facts.

    ``unused`` are names of devices that are there and not used: those of another kind than the platform runs on, or
    all, where it is not usable. ``llmk doctor`` lists them, and the plan for a platform of lower rank warns of them.
    """

    verdict: Verdict
    facts: PlatformFacts | None = None
    unused: tuple[str, ...] = ()

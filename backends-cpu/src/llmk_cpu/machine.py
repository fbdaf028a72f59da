"""A host's CPUs and memory, read from Linux' files. Imports no torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from llmk.api import Host
from llmk_cpu.processors import isa_extensions, name_in

_CPUS = "/sys/devices/system/cpu"
_CGROUPS = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60
_MANY = 8
"""Cores of which one can be spared: an eighth of the compute is more than the front end takes."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The CPUs that this process may use.

    ``physical`` counts physical cores, not hardware threads; ``quota`` is the CPU time that a container may use, in
    cores (0: no limit); ``nodes`` is the number of NUMA nodes that the cores belong to.
    """

    logical: int
    physical: int
    quota: float = 0.0
    nodes: int = 1

    @property
    def advised_threads(self) -> int:
        """One thread per physical core, limited by the quota; where there are many, one core is left to the front
        end, which would else wait for its turn, and all threads of a step with it."""
        return max(1, self._whole - self.reserved)

    @property
    def reserved(self) -> int:
        """Cores that :attr:`advised_threads` leaves to other processes of the server."""
        return int(self._whole >= _MANY)

    @property
    def _whole(self) -> int:
        return min(self.physical, int(self.quota)) if self.quota else self.physical


def flags(host: Host) -> frozenset[str]:
    """The instruction set extensions that the kernel reports, in its own spelling; empty where it reports none."""
    text = host.read("/proc/cpuinfo")
    match = re.search(r"^(?:flags|[Ff]eatures)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else isa_extensions(text)


def model_name(host: Host) -> str:
    """The processor's name, or ``""``."""
    text = host.read("/proc/cpuinfo")
    match = re.search(r"^[Mm]odel [Nn]ame\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else name_in(text)


def cores(host: Host) -> Cores:
    """Cores within this process's affinity mask and quota."""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", host.read("/proc/self/status"), re.MULTILINE)
    allowed = parse_list(match[1]) if match else set(range(os.cpu_count() or 1))
    siblings = {host.read(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list").strip() or str(cpu) for cpu in allowed}
    nodes = [parse_list(host.read(str(node / "cpulist")).strip()) for node in _nodes(host)]
    return Cores(
        logical=len(allowed),
        physical=len(siblings),
        quota=_quota(host),
        nodes=sum(1 for node in nodes if node & allowed) or 1,
    )


def memory_limit(host: Host) -> int:
    """Bytes that this process may use: the machine's memory, or a container's limit where that is less. 0: unknown."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", host.read("/proc/meminfo"), re.MULTILINE)
    limits = [int(match[1]) << 10] if match else []
    for name, folder in _cgroups(host, "memory"):
        text = host.read(f"{folder}/{name}").strip()
        if text.isdigit() and int(text) < _UNLIMITED:
            limits.append(int(text))
    return min(limits, default=0)


def memory_free(host: Host) -> int:
    """Bytes that could be allocated now: what the machine has unswapped, or a container's limit leaves. 0: unknown."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", host.read("/proc/meminfo"), re.MULTILINE)
    free = [int(match[1]) << 10] if match else []
    for name, folder in _cgroups(host, "memory"):
        limit = host.read(f"{folder}/{name}").strip()
        used = host.read(f"{folder}/{'memory.current' if name == 'memory.max' else 'memory.usage_in_bytes'}").strip()
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED:
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", host.read(f"{folder}/memory.stat"), re.MULTILINE)
            free.append(int(limit) - int(used) + (int(cached[1]) if cached else 0))
    return max(0, min(free, default=0))


def parse_list(text: str) -> set[int]:
    """The numbers in the kernel's list format, ``"0-3,8"``; other words are left out."""
    spans = (part.partition("-") for part in text.split(","))
    known = [(first, last or first) for first, _, last in spans if first.isdecimal() and (last or first).isdecimal()]
    return {number for first, last in known for number in range(int(first), int(last) + 1)}


def _nodes(host: Host) -> list[PurePosixPath]:
    folder = host.path("/sys/devices/system/node")
    names = sorted(path.name for path in folder.glob("node[0-9]*")) if folder.is_dir() else []
    return [PurePosixPath("/sys/devices/system/node") / name for name in names]


def _quota(host: Host) -> float:
    quotas = []
    for name, folder in _cgroups(host, "cpu"):
        if name == "cpu.max":
            amount, _, period = host.read(f"{folder}/{name}").strip().partition(" ")
        else:
            amount, period = (host.read(f"{folder}/cpu.cfs_{part}_us").strip() for part in ("quota", "period"))
        if amount.isdigit() and period.isdigit() and int(period):
            quotas.append(int(amount) / int(period))
    return min(quotas, default=0.0)


def _cgroups(host: Host, controller: str) -> list[tuple[str, str]]:
    """Limit file and folder of this process's control group and all groups around it, in both kinds of hierarchy."""
    names = {"memory": ("memory.max", "memory.limit_in_bytes"), "cpu": ("cpu.max", "cpu.cfs_quota_us")}[controller]
    found = []
    for line in host.read("/proc/self/cgroup").splitlines() or ["0::/"]:
        controllers, _, path = line.partition(":")[2].partition(":")
        unified = not controllers
        if unified or controller in controllers.split(","):
            root = _CGROUPS if unified else f"{_CGROUPS}/{controllers}"
            inner = PurePosixPath(path.lstrip("/"))
            folders = [inner, *inner.parents] if inner.parts else [inner]
            found += [(names[not unified], str(PurePosixPath(root) / folder)) for folder in folders]
    return found

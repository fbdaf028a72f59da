"""The CPUs of this process, and how processes divide them."""

from __future__ import annotations

import os

from llmk.api import Host

_SYSTEM = "/sys/devices/system"


def usable() -> int:
    """How many CPUs this process may run on, which may be fewer than the machine has."""
    return len(allowed()) or os.cpu_count() or 1


def allowed() -> frozenset[int]:
    """The CPUs that this process may run on: those of its control group and its affinity mask. Empty where the
    operating system binds no processes to CPUs."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:
        return frozenset()


def in_order(cpus: frozenset[int], host: Host) -> tuple[int, ...]:
    """The CPUs such that those of a NUMA node, and the hardware threads of a core, are neighbours: their numbers
    often alternate between nodes, and give second threads after all first ones."""
    folder = host.path(f"{_SYSTEM}/node")
    files = sorted(folder.glob("node[0-9]*/cpulist")) if folder.is_dir() else []
    nodes = {cpu: number for number, file in enumerate(files) for cpu in _numbers(file.read_text())}

    def place(cpu: int) -> tuple[int, int, int]:
        threads = _numbers(host.read(f"{_SYSTEM}/cpu/cpu{cpu}/topology/thread_siblings_list"))
        return nodes.get(cpu, 0), min(threads, default=cpu), cpu

    return tuple(sorted(cpus, key=place))


def share(number: int, count: int, cpus: tuple[int, ...]) -> frozenset[int]:
    """Those of ``cpus`` that are for process ``number`` of ``count``: consecutive ones, since these share caches and
    memory. Empty where there are fewer than processes."""
    if len(cpus) < count:
        return frozenset()
    first, last = (len(cpus) * place // count for place in (number % count, number % count + 1))
    return frozenset(cpus[first:last])


def _numbers(text: str) -> set[int]:
    """The numbers in the kernel's list format, ``"0-3,8"``."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}

"""The CPUs that this process may use, and how processes divide a machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmk.api import Host
from llmk.config.cpus import allowed, in_order, share, usable


def machine(root: Path, nodes: list[str], threads: dict[int, str]) -> Host:
    """A machine with these CPUs of each NUMA node, and threads of each CPU's core."""
    files = {f"node/node{number}/cpulist": text for number, text in enumerate(nodes)}
    files |= {f"cpu/cpu{cpu}/topology/thread_siblings_list": text for cpu, text in threads.items()}
    for name, text in files.items():
        file = root / "sys/devices/system" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return Host(root=root)


def test_follows_the_affinity_mask() -> None:
    before = os.sched_getaffinity(0)
    assert usable() == len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable() == 1
        assert allowed() == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_threads_of_a_core_are_neighbours(tmp_path: Path) -> None:
    host = machine(tmp_path, ["0-7"], {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert in_order(frozenset(range(8)), host) == (0, 4, 1, 5, 2, 6, 3, 7)


def test_cpus_of_a_node_are_neighbours(tmp_path: Path) -> None:
    """Those of a machine that numbers its nodes' CPUs in turn."""
    host = machine(tmp_path, ["0,2,4,6", "1,3,5,7"], {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert in_order(frozenset(range(8)), host) == (0, 4, 2, 6, 1, 5, 3, 7)
    assert [share(number, 2, in_order(frozenset(range(8)), host)) for number in (0, 1)] == [{0, 2, 4, 6}, {1, 3, 5, 7}]


def test_only_what_the_control_group_allows_is_divided(tmp_path: Path) -> None:
    host = machine(tmp_path, ["0-3", "4-7", ""], {})
    assert in_order(frozenset({7, 2, 3, 5}), host) == (2, 3, 5, 7)


def test_without_a_topology_numbers_decide(tmp_path: Path) -> None:
    assert in_order(frozenset({3, 1, 2}), Host(root=tmp_path)) == (1, 2, 3)


@pytest.mark.parametrize(("count", "cpus"), [(2, 2), (3, 7), (4, 64), (5, 4), (1, 1)])
def test_each_cpu_is_of_one_process(count: int, cpus: int) -> None:
    usable = tuple(range(10, 10 + cpus))
    shares = [share(number, count, usable) for number in range(count)]
    if cpus < count:
        assert not any(shares)
        return
    assert tuple(sorted(cpu for each in shares for cpu in each)) == usable
    assert max(map(len, shares)) - min(map(len, shares)) <= 1

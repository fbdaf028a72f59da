"""What is known of a machine whose NUMA nodes are devices: from files, without torch. Each node that has processors and
memory of its own is one, and a rank runs on one node alone, next to its memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmk.api import OK, Host, PlatformFacts, Probe, RankRules, no

VISIBLE = "DELTA_VISIBLE_NODES"
_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"
_MOST_IDS = 1 << 16
"""More processors than Linux has room for."""
_UNLIMITED = 1 << 60
"""Control groups of the first version have no word for it, but numbers from about here on."""
_LEVELS = (
    (4, "x86_64-wide", frozenset({"avx2", "fma", "f16c", "avx512f", "avx512bw"})),
    (3, "x86_64-avx2", frozenset({"avx2", "fma", "f16c"})),
)
_FEATURES = frozenset(
    [
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx512_bf16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
        "asimd",
        "asimdhp",
        "asimddp",
        "sve",
        "sve2",
        "i8mm",
        "bf16",
    ]
)


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its processors that the process may use, and its memory in bytes."""

    number: int
    cpus: frozenset[int]
    memory: int


RANKS = RankRules(resource="CPU", network=("GLOO_SOCKET_IFNAME",), visible=(VISIBLE,))
"""Ranks are told which nodes are the engine's, and the interface."""


def facts_of(machine: str, features: frozenset[str]) -> PlatformFacts:
    """The facts that follow from a processor's extensions."""
    arch, version = machine or "unknown", 0
    if machine == "x86_64":
        found = ((version, name) for version, name, wanted in _LEVELS if wanted <= features)
        version, arch = next(found, (2, "x86_64"))
    elif machine == "aarch64":
        version = 9 if "sve2" in features else 8
    return PlatformFacts(
        name="delta",
        arch=arch,
        device_type="cpu",
        arch_family=machine,
        arch_version=(version,),
        features=features,
        dtypes=("bfloat16", "float32") if features & {"avx512_bf16", "bf16"} else ("float32",),
        shared_device=True,
        device_name="NUMA node",
    )


def probe(host: Host) -> Probe:
    """Usable on Linux, where a visible node has processors and memory."""
    if host.system != "Linux":
        return Probe(no("system", wanted="Linux", found=host.system))
    nodes = all_nodes(host)
    usable = visible_nodes(host, nodes)
    unused = tuple(f"node {node.number}" for node in nodes if node not in usable)
    if not usable:
        hint = f"{VISIBLE} lists numbers of nodes" if host.environ.get(VISIBLE, "").strip() else ""
        verdict = no("no_device", wanted="a node with processors and memory", found="none", hint=hint)
        return Probe(verdict, unused=unused)
    facts = facts_of(host.machine, _features(host))
    total = min(node.memory for node in usable)
    limit = group_limits(host)[0]
    return Probe(OK, with_memory(facts, total if limit is None else min(total, limit), len(usable)), unused)


def with_memory(facts: PlatformFacts, memory: int, count: int) -> PlatformFacts:
    """The facts of a machine with ``count`` nodes."""
    values = {name: getattr(facts, name) for name in facts.__slots__}
    return PlatformFacts(**values | {"memory_bytes": memory, "num_devices": count})


def all_nodes(host: Host) -> list[Node]:
    """By number. A kernel without NUMA has one node, of all there is."""
    allowed = parse_list(_field(host.read("/proc/self/status"), "Cpus_allowed_list"))
    numbers = parse_list(host.read(f"{_NODES}/online"))
    if not numbers:
        cpus = parse_list(host.read(f"{_CPUS}/online")) or frozenset({0})
        return [Node(0, cpus & allowed or allowed or cpus, _kilobytes(host.read("/proc/meminfo"), "MemTotal"))]
    nodes = []
    for number in sorted(numbers):
        cpus = parse_list(host.read(f"{_NODES}/node{number}/cpulist"))
        memory = _kilobytes(host.read(f"{_NODES}/node{number}/meminfo"), f"Node {number} MemTotal")
        nodes.append(Node(number, cpus & allowed if allowed else cpus, memory))
    return nodes


def visible_nodes(host: Host, nodes: list[Node]) -> list[Node]:
    """Those that are usable, in the order in which the environment lists them, if it does."""
    usable = {str(node.number): node for node in nodes if node.cpus and node.memory}
    listed = host.environ.get(VISIBLE, "")
    if not listed.strip():
        return list(usable.values())
    names = dict.fromkeys(name.strip() for name in listed.split(","))
    return [usable[name] for name in names if name in usable]


def core_count(host: Host, cpus: frozenset[int]) -> int:
    """Cores of ``cpus``, whose threads share one."""
    cores = set()
    for cpu in cpus:
        threads = parse_list(host.read(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list"))
        cores.add(min(threads) if cpu in threads else cpu)
    return max(len(cores), 1)


def memory_total(host: Host, number: int) -> int:
    """Bytes of a node, as far as the control groups let the process have them."""
    total = next((node.memory for node in all_nodes(host) if node.number == number), 0)
    limit = group_limits(host)[0]
    return total if limit is None else min(total, limit)


def memory_available(host: Host, number: int) -> int:
    """Bytes of a node that are free, or that the kernel would drop for others."""
    machine = host.read("/proc/meminfo")
    amounts = [_kilobytes(machine, "MemAvailable")]
    node = host.read(f"{_NODES}/node{number}/meminfo")
    if node:
        names = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
        amounts.append(sum(_kilobytes(node, f"Node {number} {name}") for name in names))
    left = group_limits(host)[1]
    return min(amounts if left is None else [*amounts, left])


def group_limits(host: Host) -> tuple[int | None, int | None]:
    """The least limit of the process's control groups and those above, and the least that is left of one, in bytes;
    ``None`` where there is none. Files that the kernel would drop are left, too."""
    limits, left = [], []
    for line in host.read("/proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            root, names = "/sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            folder = "/".join([root, *parts[:depth]])
            limit = _number(host.read(f"{folder}/{names[0]}"))
            if limit is None or limit >= _UNLIMITED:
                continue
            used = _number(host.read(f"{folder}/{names[1]}")) or 0
            files = re.search(rf"(?m)^{names[2]} ([0-9]+)$", host.read(f"{folder}/memory.stat"))
            limits.append(limit)
            left.append(max(limit - max(used - int(files[1]) if files else used, 0), 0))
    return min(limits, default=None), min(left, default=None)


def parse_list(text: str) -> frozenset[int]:
    """Of ``"0-3,8"``, the five numbers. What is no number or range is left out."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(range(first, min(last + 1, _MOST_IDS)))
    return frozenset(found)


def _features(host: Host) -> frozenset[str]:
    """Extensions that all processors have."""
    lines = re.findall(r"(?m)^(?:flags|Features)[ \t]*:(.*)$", host.read("/proc/cpuinfo"))
    return frozenset.intersection(*(frozenset(line.split()) for line in lines)) & _FEATURES if lines else frozenset()


def _field(text: str, name: str) -> str:
    """The value of a line ``name: value``."""
    match = re.search(rf"(?m)^{re.escape(name)}:(.*)$", text)
    return match[1] if match else ""


def _kilobytes(text: str, name: str) -> int:
    """The value of a line of ``meminfo`` in bytes; 0 if there is none."""
    match = re.fullmatch(r"\s*([0-9]{1,15}) kB\s*", _field(text, name))
    return int(match[1]) * 1024 if match else 0


def _number(text: str) -> int | None:
    match = re.fullmatch(r"\s*([0-9]{1,20})\s*", text)
    return int(match[1]) if match else None

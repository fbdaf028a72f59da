"""What a machine's files say of its NUMA nodes. It needs no torch.

The device of the platform ``numa`` is a NUMA node: the cores of a socket, or of a part of one, and the memory next to
them. Nodes without cores, as memory on CXL is seen, are no devices; nor are those that ``QUAY_NODES`` leaves out, which
lists nodes in the order in which they are used, as ``CUDA_VISIBLE_DEVICES`` does. A kernel without NUMA support shows
no nodes; the whole machine is then node 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmk.api import OK, Host, PlatformFacts, Probe, no

NAME = "numa"
VISIBLE = "QUAY_NODES"

_NODES, _CPUS = "/sys/devices/system/node", "/sys/devices/system/cpu"
_GROUPS = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60
"""Limits of control groups from here on are none: version 1 writes the largest number of whole pages."""
_MOST = 1 << 16
"""No machine has more CPUs or nodes, so that no range in a list is longer."""
_LEVELS = (
    (2, frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})),
    (3, frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
    (4, frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)
"""Levels of x86-64 by its psABI, each with what it adds to the one before."""
_X86 = {2: "x86_64", 3: "x86_64-avx2", 4: "x86_64-avx512"}
_FEATURES = frozenset(
    {
        *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("amx_tile", "amx_int8", "amx_bf16"),
        *("asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16", "svebf16"),
    }
)
"""Flags in /proc/cpuinfo that are words of the vocabulary of features, which kernels need."""
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node with cores."""

    number: int
    cpus: tuple[int, ...]


def numbers(text: str) -> tuple[int, ...]:
    """The numbers in a list as the kernel writes it (``"0-3,8"``), in its order and each once; what is none is left
    out."""
    found: dict[int, None] = {}
    for part in text.split(","):
        if match := re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part):
            first = int(match[1])
            found |= dict.fromkeys(range(first, min(int(match[2] or first), first + _MOST) + 1))
    return tuple(found)


def all_nodes(host: Host) -> list[Node]:
    """The nodes with cores that are online."""
    online = numbers(host.read(f"{_NODES}/online"))
    nodes = [Node(number, numbers(host.read(f"{_NODES}/node{number}/cpulist"))) for number in online]
    with_cpus = [node for node in nodes if node.cpus]
    return with_cpus or [Node(0, numbers(host.read(f"{_CPUS}/online")) or (0,))]


def visible_nodes(host: Host) -> list[Node]:
    """Those that the environment lets a process use, in its order: device ``i`` is the ``i``-th of them."""
    nodes = all_nodes(host)
    if VISIBLE not in host.environ:
        return nodes
    by_number = {node.number: node for node in nodes}
    return [by_number[number] for number in numbers(host.environ[VISIBLE]) if number in by_number]


def cores(host: Host, cpus: Sequence[int]) -> int:
    """How many cores ``cpus`` are threads of; a CPU of which nothing is known is one."""
    siblings = (numbers(host.read(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list")) for cpu in cpus)
    return len({among or (cpu,) for cpu, among in zip(cpus, siblings, strict=True)})


def total_bytes(host: Host, node: Node) -> int:
    """The node's memory, or less where a control group has a limit; 0: unknown."""
    own = _field(host, f"{_NODES}/node{node.number}/meminfo", "MemTotal") or _field(host, "/proc/meminfo", "MemTotal")
    limits = [limit for limit, _ in _limits(host)]
    return min([own, *limits] if own else limits, default=0)


def available_bytes(host: Host, node: Node) -> int:
    """What can be allocated on the node now: free pages and those that only hold what is on disk, or less where a
    control group has a limit. 0: nothing is known."""
    local = f"{_NODES}/node{node.number}/meminfo"
    parts = [_field(host, local, name) for name in ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")]
    known = [each for each in (sum(parts), _field(host, "/proc/meminfo", "MemAvailable")) if each]
    return min([*known, *(max(0, limit - used) for limit, used in _limits(host))], default=0)


def facts(host: Host) -> PlatformFacts:
    """The machine's facts, of the nodes that are visible."""
    nodes, info = visible_nodes(host), host.read("/proc/cpuinfo")
    flags = frozenset(_line(info, r"flags|Features").split())
    arch, family, version = _architecture(host.machine, flags)
    return PlatformFacts(
        name=NAME,
        arch=arch,
        device_type="cpu",
        arch_family=family,
        arch_version=version,
        features=flags & _FEATURES,
        dtypes=("bfloat16", "float32") if flags & _BFLOAT16 else ("float32",),
        memory_bytes=min((total_bytes(host, node) for node in nodes), default=0),
        num_devices=len(nodes),
        shared_device=True,
        device_name=_line(info, r"model name|Model|cpu model"),
    )


def probe(host: Host) -> Probe:
    """Usable on Linux for x86-64 and Arm, where a node is visible."""
    if host.system != "Linux":
        return Probe(no("no_device", wanted="NUMA nodes of Linux", found=host.system))
    if host.machine not in ("x86_64", "aarch64"):
        return Probe(no("unknown_architecture", wanted="x86_64 or aarch64", found=host.machine))
    used = {node.number for node in visible_nodes(host)}
    unused = tuple(f"node{node.number}" for node in all_nodes(host) if node.number not in used)
    if not used:
        hint = f"correct {VISIBLE}, or unset it"
        return Probe(no("no_visible_device", wanted="a node", found=host.environ[VISIBLE], hint=hint), None, unused)
    return Probe(OK, facts(host), unused)


def _architecture(machine: str, flags: frozenset[str]) -> tuple[str, str, tuple[int, ...]]:
    """Name, family and version, as the vocabulary has them."""
    if machine == "aarch64":
        return ("aarch64-bf16" if "bf16" in flags else "aarch64"), "aarch64", (9 if "sve2" in flags else 8,)
    level = 1
    for above, adds in _LEVELS:
        if not adds <= flags:
            break
        level = above
    return _X86.get(level, "x86_64"), "x86_64", (level,)


def _line(info: str, names: str) -> str:
    """The value of the first line of ``/proc/cpuinfo`` with one of the names."""
    match = re.search(rf"^(?:{names})[ \t]*:[ \t]*(.*)$", info, re.MULTILINE)
    return match[1].strip() if match else ""


def _field(host: Host, path: str, name: str) -> int:
    """A field of a file like ``/proc/meminfo``, in bytes; 0: it isn't there."""
    line = rf"^(?:Node[ \t]+[0-9]+[ \t]+)?{re.escape(name)}:[ \t]*([0-9]+)[ \t]*kB"
    match = re.search(line, host.read(path), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _limits(host: Host) -> Iterator[tuple[int, int]]:
    """Limit and use, without what only holds files, of the process's control groups that limit memory, in bytes; of
    both versions, and of all groups above, as each of them counts."""
    for line in host.read("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = f"{_GROUPS}/memory" if controllers else _GROUPS
        files = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            folder = "/".join((root, *parts[:depth]))
            limit, used = (host.read(f"{folder}/memory.{file}").strip() for file in files)
            if limit.isdecimal() and int(limit) < _UNLIMITED:
                field = "total_inactive_file" if controllers else "inactive_file"
                held = re.search(rf"^{field} ([0-9]+)$", host.read(f"{folder}/memory.stat"), re.MULTILINE)
                cached = int(held[1]) if held else 0
                yield int(limit), max(0, int(used) - cached) if used.isdecimal() else 0

"""Machines for the conformance kit: by their files, with what the probe must say of them."""

from __future__ import annotations

from functools import partial

from llmk_testing.platform_example import PlatformExample

from .swift_numa import core_count, group_limits, memory_available, memory_total

_GIB = 1 << 20
"""In kB."""
_SMALL = "fpu sse2 avx avx2 fma f16c bmi2"
_LARGE = f"{_SMALL} avx512f avx512bw avx512_vnni avx512_bf16"
_FACTS = {"name": "delta", "device_type": "cpu", "shared_device": True, "device_name": "NUMA node"}


def _meminfo(number: int, total: int, free: int = 0, files: int = 0) -> str:
    lines = {"MemTotal": total, "MemFree": free, "Active(file)": files, "Inactive(file)": files, "SReclaimable": 0}
    return "".join(f"Node {number} {name}: {value} kB\n" for name, value in lines.items())


def _cpuinfo(*flags: str, name: str = "flags") -> str:
    return "\n".join(f"processor\t: {cpu}\nmodel name\t: x\n{name}\t\t: {line}\n" for cpu, line in enumerate(flags))


_TWO_NODES = {
    "/proc/cpuinfo": _cpuinfo(_LARGE, _LARGE),
    "/proc/meminfo": f"MemTotal: {96 * _GIB} kB\nMemFree: {9 * _GIB} kB\nMemAvailable: {40 * _GIB} kB\n",
    "/proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0-2\n",
    "/proc/self/cgroup": "0::/user.slice/a\n",
    "/sys/devices/system/node/online": "0-2\n",
    "/sys/devices/system/node/node0/cpulist": "0-3,8-11\n",
    "/sys/devices/system/node/node0/meminfo": _meminfo(0, 32 * _GIB, 8 * _GIB, 2 * _GIB),
    "/sys/devices/system/node/node1/cpulist": "4-7,12-15\n",
    "/sys/devices/system/node/node1/meminfo": _meminfo(1, 48 * _GIB, 9 * _GIB, 3 * _GIB),
    "/sys/devices/system/node/node2/cpulist": "\n",
    "/sys/devices/system/node/node2/meminfo": _meminfo(2, 16 * _GIB, 16 * _GIB),
    "/sys/fs/cgroup/user.slice/a/memory.max": "max\n",
    "/sys/fs/cgroup/user.slice/a/memory.current": f"{70 << 30}\n",
    "/sys/fs/cgroup/user.slice/memory.max": "max\n",
    "/sys/fs/cgroup/user.slice/memory.current": f"{80 << 30}\n",
    **{
        f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 8},{cpu % 8 + 8}\n"
        for cpu in range(16)
    },
}
_LARGE_FACTS = {
    **_FACTS,
    "arch": "x86_64-wide",
    "arch_family": "x86_64",
    "arch_version": (4,),
    "dtypes": ("bfloat16", "float32"),
    "features": frozenset(["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"]),
}
_GROUP = "/sys/fs/cgroup/memory/docker/c"
_SMALL_FACTS = {
    **_FACTS,
    "arch": "x86_64-avx2",
    "arch_family": "x86_64",
    "arch_version": (3,),
    "dtypes": ("float32",),
    "features": frozenset({"avx2", "fma", "f16c"}),
}

MACHINES = [
    PlatformExample(
        name="two nodes, and memory without processors",
        files=_TWO_NODES,
        facts={**_LARGE_FACTS, "num_devices": 2, "memory_bytes": 32 << 30},
        needs=("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
        devices=("0", "1"),
        said=(
            (group_limits, (None, None)),
            (partial(memory_total, number=1), 48 << 30),
            (partial(memory_available, number=0), 12 << 30),
            (partial(memory_available, number=1), 15 << 30),
            (partial(core_count, cpus=frozenset({4, 5, 12})), 2),
        ),
    ),
    PlatformExample(
        name="the same, of which a group may use a part",
        files={
            **_TWO_NODES,
            "/proc/self/status": "Cpus_allowed_list:\t4-5\n",
            "/sys/fs/cgroup/user.slice/memory.max": f"{20 << 30}\n",
            "/sys/fs/cgroup/user.slice/memory.current": f"{18 << 30}\n",
            "/sys/fs/cgroup/user.slice/memory.stat": f"anon 5\ninactive_file {4 << 30}\nfile 7\n",
        },
        facts={**_LARGE_FACTS, "num_devices": 1, "memory_bytes": 20 << 30},
        known=True,
        said=(
            (group_limits, (20 << 30, 6 << 30)),
            (partial(memory_total, number=1), 20 << 30),
            (partial(memory_available, number=1), 6 << 30),
        ),
    ),
    PlatformExample(
        name="one node in a container of the first version",
        files={
            "/proc/cpuinfo": _cpuinfo(_LARGE, _SMALL),
            "/proc/meminfo": f"MemTotal: {16 * _GIB} kB\nMemAvailable: {5 * _GIB} kB\n",
            "/proc/self/cgroup": "4:cpu,cpuacct:/docker/c\n3:memory:/docker/c\n",
            "/sys/devices/system/cpu/online": "0-1\n",
            f"{_GROUP}/memory.limit_in_bytes": f"{3 << 30}\n",
            f"{_GROUP}/memory.usage_in_bytes": f"{1 << 30}\n",
            f"{_GROUP}/memory.stat": f"inactive_file 0\ntotal_inactive_file {1 << 29}\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 << 30}\n",
        },
        facts={**_SMALL_FACTS, "num_devices": 1, "memory_bytes": 3 << 30},
        known=True,
        devices=("0",),
        said=(
            (group_limits, (3 << 30, (2 << 30) + (1 << 29))),
            (partial(memory_total, number=0), 3 << 30),
            (partial(memory_available, number=0), (2 << 30) + (1 << 29)),
            (partial(core_count, cpus=frozenset({0, 1})), 2),
        ),
    ),
    PlatformExample(
        name="an Arm board",
        machine="aarch64",
        files={
            "/proc/cpuinfo": _cpuinfo("fp asimd asimdhp asimddp", name="Features"),
            "/proc/meminfo": f"MemTotal: {8 * _GIB} kB\nMemAvailable: {_GIB} kB\n",
        },
        facts={
            **_FACTS,
            "arch": "aarch64",
            "arch_family": "aarch64",
            "arch_version": (8,),
            "dtypes": ("float32",),
            "features": frozenset({"asimd", "asimdhp", "asimddp"}),
            "memory_bytes": 8 << 30,
        },
        known=True,
        needs=("asimd", "asimdhp", "asimddp"),
        said=((partial(memory_total, number=0), 8 << 30), (partial(memory_available, number=0), 1 << 30)),
    ),
    PlatformExample(name="no node", files={}, facts=None, refused=("no_device",)),
    PlatformExample(
        name="a node that is not there", files=_TWO_NODES, environ={"DELTA_VISIBLE_NODES": "7"}, refused=("no_device",)
    ),
    PlatformExample(name="a Mac", machine="arm64", system="Darwin", refused=("system",)),
]

"""Examples of the platform for the conformance kit: machines by their files, and what is true of them."""

from __future__ import annotations

from llmk_testing.platform_example import PlatformExample

from .rail_machine import allowed_cpus, default_threads, memory_available, memory_total

GIB = 1 << 30
V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
COMMON = {"name": "lagoon", "device_type": "cpu", "shared_device": True, "num_devices": 1}


def cpuinfo(flags: str, name: str, count: int = 2) -> str:
    """``/proc/cpuinfo`` of an x86-64 processor."""
    block = "processor\t: {}\nmodel name\t: {}\nflags\t\t: fpu vme sse sse2 {}\nbogomips\t: 4800\n\n"
    return "".join(block.format(number, name, flags) for number in range(count))


def meminfo(total: int, available: int) -> str:
    """``/proc/meminfo`` of a machine with so many GiB."""
    kib = GIB // 1024
    return f"MemTotal:       {total * kib} kB\nMemFree:        {kib} kB\nMemAvailable:   {available * kib} kB\n"


def cores(*siblings: str, allowed: str) -> dict[str, str]:
    """The files about cores with these threads, of which the process may use the ``allowed`` ones."""
    status = f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t0\n"
    files = {"/proc/self/status": status}
    for text in siblings:
        first, _, last = text.partition("-")
        numbers = [int(n) for n in text.split(",")] if "," in text else range(int(first), int(last or first) + 1)
        for number in numbers:
            files[f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"] = f"{text}\n"
    return files


MACHINES = [
    PlatformExample(
        name="a server without a limit",
        files={
            "/proc/cpuinfo": cpuinfo(V4, "Xeon Gold"),
            "/proc/meminfo": meminfo(64, 40),
            "/proc/self/cgroup": "0::/user.slice/user-0.slice\n",
            "/sys/fs/cgroup/user.slice/memory.max": "max\n",
            "/sys/fs/cgroup/user.slice/memory.current": f"{60 * GIB}\n",
            "/sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
            **cores("0,4", "1,5", "2,6", "3,7", allowed="0-7"),
        },
        facts={
            **COMMON,
            "arch": "x86-64-v4",
            "arch_family": "x86_64",
            "arch_version": (4,),
            "features": frozenset({"avx2", "fma", "f16c", "avx512f", "avx512bw"}),
            "dtypes": ("float32",),
            "memory_bytes": 64 * GIB,
            "device_name": "Xeon Gold",
        },
        known=True,
        needs=V4.split(),
        said=((memory_total, 64 * GIB), (memory_available, 40 * GIB), (default_threads, 4)),
    ),
    PlatformExample(
        name="a server that multiplies bfloat16",
        files={
            "/proc/cpuinfo": cpuinfo(f"{V4} avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16", "Xeon Platinum"),
            "/proc/meminfo": meminfo(512, 500),
            **cores("0-1", "2-3", allowed="0-3"),
        },
        facts={
            **COMMON,
            "arch": "x86-64-v4",
            "features": frozenset(
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
                ]
            ),
            "dtypes": ("bfloat16", "float32"),
            "memory_bytes": 512 * GIB,
        },
        said=((memory_total, 512 * GIB), (memory_available, 500 * GIB), (default_threads, 2)),
    ),
    PlatformExample(
        name="a container of version 2",
        files={
            "/proc/cpuinfo": cpuinfo(V3, "EPYC", 4),
            "/proc/meminfo": meminfo(64, 40),
            "/proc/self/cgroup": "0::/pods/one\n",
            "/sys/fs/cgroup/pods/memory.max": f"{16 * GIB}\n",
            "/sys/fs/cgroup/pods/memory.current": f"{15 * GIB}\n",
            "/sys/fs/cgroup/pods/memory.stat": f"anon {9 * GIB}\nactive_file {GIB}\ninactive_file {5 * GIB}\n",
            "/sys/fs/cgroup/pods/one/memory.max": f"{8 * GIB}\n",
            "/sys/fs/cgroup/pods/one/memory.current": f"{3 * GIB}\n",
            "/sys/fs/cgroup/pods/one/memory.stat": f"inactive_file {GIB}\n",
            "/sys/fs/cgroup/pods/cpu.max": "250000 100000\n",
            "/sys/fs/cgroup/pods/one/cpu.max": "max 100000\n",
            **cores("0", "1", "2", "3", allowed="0-3"),
        },
        facts={
            **COMMON,
            "arch": "x86-64-v3",
            "arch_family": "x86_64",
            "arch_version": (3,),
            "features": frozenset({"avx2", "fma", "f16c"}),
            "dtypes": ("float32",),
            "memory_bytes": 8 * GIB,
            "device_name": "EPYC",
        },
        known=True,
        needs=V3.split(),
        said=((memory_total, 8 * GIB), (memory_available, 6 * GIB), (default_threads, 2)),
    ),
    PlatformExample(
        name="a container of version 1",
        files={
            "/proc/cpuinfo": cpuinfo(V2, "Xeon E5"),
            "/proc/meminfo": meminfo(32, 20),
            "/proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
            "/sys/fs/cgroup/memory/memory.stat": f"cache {GIB}\ninactive_file 0\ntotal_inactive_file {GIB}\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            **cores("0,4", "1,5", "2,6", "3,7", allowed="0-7"),
        },
        facts={
            **COMMON,
            "arch": "x86-64-v2",
            "arch_family": "x86_64",
            "arch_version": (2,),
            "features": frozenset(),
            "dtypes": ("float32",),
            "memory_bytes": 4 * GIB,
        },
        known=True,
        needs=V2.split(),
        said=((memory_total, 4 * GIB), (memory_available, 2 * GIB), (default_threads, 3)),
    ),
    PlatformExample(
        name="version 1 without limits",
        files={
            "/proc/cpuinfo": cpuinfo("lm", "Atom"),
            "/proc/meminfo": meminfo(8, 5),
            "/proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{7 * GIB}\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            **cores("0-1", "2", "3", "4-7", allowed="1-3,5-6"),
        },
        facts={**COMMON, "arch": "x86-64", "arch_version": (1,), "features": frozenset(), "memory_bytes": 8 * GIB},
        known=True,
        said=(
            (memory_total, 8 * GIB),
            (memory_available, 5 * GIB),
            (allowed_cpus, [1, 2, 3, 5, 6]),
            (default_threads, 4),
        ),
    ),
    PlatformExample(
        name="an Arm server",
        machine="aarch64",
        files={
            "/proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp sve sve2 i8mm bf16\n\n",
            "/proc/meminfo": meminfo(16, 12),
            **cores("0", "1", "2", "3", allowed="0-3"),
        },
        facts={
            **COMMON,
            "arch": "armv9",
            "arch_family": "aarch64",
            "arch_version": (4,),
            "features": frozenset({"asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16"}),
            "dtypes": ("bfloat16", "float32"),
            "device_name": "aarch64 processor",
        },
        known=True,
        needs=("asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16"),
        said=((memory_total, 16 * GIB), (memory_available, 12 * GIB), (default_threads, 4)),
    ),
    PlatformExample(
        name="a machine that says nothing",
        machine="",
        facts={**COMMON, "arch": "unknown", "arch_family": "", "memory_bytes": 0, "device_name": "unknown processor"},
        said=((memory_total, 0), (memory_available, 0), (default_threads, 1)),
    ),
    PlatformExample(name="another system", system="Darwin", machine="arm64", refused=("system",)),
]

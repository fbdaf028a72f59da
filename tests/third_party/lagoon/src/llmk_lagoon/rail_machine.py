"""What is known of a machine with CPUs, from the files of its kernel alone: processor, cores, and the limits of control
groups of either version. It imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from llmk.api import OK, Host, PlatformFacts, Probe, no

X86_LEVELS = (
    ("x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
)
"""Of the psABI: each needs what those before it need, too. ``pni`` is SSE3, and ``abm`` has LZCNT."""
ARM_LEVELS = (("armv8.2", "asimdhp asimddp"), ("armv8.6", "i8mm bf16"), ("armv9", "sve sve2"))
FEATURES = frozenset(
    [
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx512_bf16",
        "avx_vnni",
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
MULTIPLY_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
CPUS = "/sys/devices/system/cpu"
GROUPS = "/sys/fs/cgroup"


def probe(host: Host) -> Probe:
    """Usable on Linux, whose files say what there is."""
    if host.system != "Linux":
        return Probe(no("system", wanted="Linux", found=host.system or "unknown"))
    info = host.read("/proc/cpuinfo")
    words = frozenset((_line(info, "flags") or _line(info, "Features")).split())
    name = _line(info, "model name") or f"{host.machine or 'unknown'} processor"
    return Probe(OK, facts_of(host.machine, words, name, memory_total(host)))


def facts_of(machine: str, words: frozenset[str], name: str = "", memory: int = 0) -> PlatformFacts:
    """The facts of a machine whose processor has the extensions ``words``."""
    levels = {"x86_64": X86_LEVELS, "aarch64": ARM_LEVELS}.get(machine, ())
    arch, version = {"x86_64": "x86-64", "aarch64": "armv8"}.get(machine, machine or "unknown"), 1
    for level, needed in levels:
        if not words.issuperset(needed.split()):
            break
        arch, version = level, version + 1
    return PlatformFacts(
        name="lagoon",
        arch=arch,
        device_type="cpu",
        arch_family=machine,
        arch_version=(version,),
        features=words & FEATURES,
        dtypes=("bfloat16", "float32") if words & MULTIPLY_BFLOAT16 else ("float32",),
        memory_bytes=memory,
        shared_device=True,
        device_name=name,
    )


def memory_total(host: Host) -> int:
    """The machine's memory, or the least limit of a group, in bytes; 0 if unknown."""
    sizes = [_meminfo(host, "MemTotal"), *(limit for limit, _ in _memory_limits(host))]
    return min((size for size in sizes if size), default=0)


def memory_available(host: Host) -> int:
    """What can be taken without swapping: of the machine, and within every limit."""
    rooms = [_meminfo(host, "MemAvailable"), *(max(limit - used, 0) for limit, used in _memory_limits(host))]
    return min((room for room in rooms if room is not None), default=0)


def default_threads(host: Host) -> int:
    """One for each core that the process may use, and no more than its groups' quotas allow."""
    cores = {_siblings(host, cpu) for cpu in allowed_cpus(host)}
    return max(1, min([len(cores), *(int(quota) for quota in _cpu_quotas(host))]))


def allowed_cpus(host: Host) -> list[int]:
    """The numbers of the CPUs that the process may run on; of all that are online where that is unknown."""
    allowed = _line(host.read("/proc/self/status"), "Cpus_allowed_list")
    return _numbers(allowed) or _numbers(host.read(f"{CPUS}/online")) or [0]


def _siblings(host: Host, cpu: int) -> tuple[int, ...]:
    """The CPUs that are threads of one core."""
    found = _numbers(host.read(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list"))
    return tuple(found) if cpu in found else (cpu,)


def _memory_limits(host: Host) -> Iterator[tuple[int, int]]:
    """Of every group with a limit: the limit, and what is used of it, less what the kernel can drop at once."""
    for files in (("memory.max", "memory.current", "inactive_file"),
                  ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):  # fmt: skip
        for folder in _group_folders(host, "memory"):
            limit = _number(host.read(f"{folder}/{files[0]}"))
            if limit is not None:
                stat = re.search(rf"^{files[2]} (\d+)$", host.read(f"{folder}/memory.stat"), re.MULTILINE)
                used = (_number(host.read(f"{folder}/{files[1]}")) or 0) - (int(stat[1]) if stat else 0)
                yield limit, max(used, 0)


def _cpu_quotas(host: Host) -> Iterator[float]:
    """CPUs' worth of time that every group with a quota gets."""
    for folder in _group_folders(host, "cpu"):
        quota, _, period = host.read(f"{folder}/cpu.max").strip().partition(" ")
        for time, of in (
            (_number(quota), _number(period)),
            (_number(host.read(f"{folder}/cpu.cfs_quota_us")), _number(host.read(f"{folder}/cpu.cfs_period_us"))),
        ):
            if time and of:
                yield time / of


def _group_folders(host: Host, controller: str) -> Iterator[str]:
    """The folders of the process's group and of all groups around it, in either version. A container sees its own as
    the root, though its name is a path."""
    for line in host.read("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            root = GROUPS
        elif controller in controllers.split(","):
            root = f"{GROUPS}/{controller}"
        else:
            continue
        path = PurePosixPath(name)
        if ".." not in path.parts:
            for around in (path, *path.parents):
                yield f"{root}/{str(around).strip('/.')}".rstrip("/")


def _meminfo(host: Host, key: str) -> int | None:
    value = _line(host.read("/proc/meminfo"), key).removesuffix("kB")
    number = _number(value)
    return None if number is None else number * 1024


def _line(text: str, key: str) -> str:
    """What stands behind a key and a colon, in the first such line."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == key:
            return value.strip()
    return ""


def _number(text: str) -> int | None:
    """A whole number that is not negative; ``None`` for words, such as ``max``."""
    text = text.strip()
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def _numbers(text: str) -> list[int]:
    """The numbers of a list such as ``0-3,8``, ascending; none, if it is no such list."""
    if not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*", text.strip()):
        return []
    found: set[int] = set()
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)

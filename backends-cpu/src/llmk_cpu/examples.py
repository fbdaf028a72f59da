"""Examples for the conformance kit: machines by what they write under /proc and /sys, and what is true of them.

Bits, parts and machine types are those of Linux' headers, which ``processors`` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

from llmk.api import Host
from llmk_cpu.machine import Cores, cores, memory_free, memory_limit
from llmk_cpu.native import library
from llmk_testing.platform_example import PlatformExample

_NATIVE = library.path() is not None
"""Whether the wheel has its C++ library."""
_GIB = 1 << 30

AVX2 = "fpu sse4_2 avx avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl avx512_vnni"
AMX = f"{AVX512} avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
_UNNAMED = ("fpu", "sse4_2", "avx", "avx512dq", "avx512vl")
"""Flags that are no features."""
NEON = "fp asimd evtstrm aes crc32 atomics fphp asimdhp asimddp"
NEOVERSE_V1 = f"{NEON} sve i8mm bf16 svebf16"
NEOVERSE_V2 = f"{NEOVERSE_V1} sve2 sveaes dgh rng bti"
_ARM = {"asimd", "asimdhp", "asimddp", "sve", "sve2", "svebf16", "i8mm", "bf16"}
_ARM_PARTS = (
    ("Cortex-A72", 0x41, 0xD08, "fp asimd evtstrm"),
    ("Cortex-A76", 0x41, 0xD0B, NEON),
    ("Neoverse N1", 0x41, 0xD0C, NEON),
    ("Neoverse V1", 0x41, 0xD40, NEOVERSE_V1),
    ("Neoverse N2", 0x41, 0xD49, NEOVERSE_V2),
    ("Neoverse V2", 0x41, 0xD4F, NEOVERSE_V2),
    ("Neoverse V3AE", 0x41, 0xD83, NEOVERSE_V2),
    ("Neoverse V3", 0x41, 0xD84, NEOVERSE_V2),
    ("Neoverse N3", 0x41, 0xD8E, NEOVERSE_V2),
    ("A64FX", 0x46, 0x001, f"{NEON} sve"),
    ("AmpereOne", 0xC0, 0xAC3, NEOVERSE_V1),
)
_KNOWN_PARTS = ("Neoverse N1", "Neoverse V1", "Neoverse N2", "Neoverse V2")
_POWER9 = {"altivec", "vsx", "arch_2_07", "arch_3_00"}
_POWER10 = {*_POWER9, "arch_3_1", "mma"}
_POWER9_HWCAP = {16: 0xDC0065C2, 26: 0xAEF00000 & ~(1 << 18)}
_POWER10_HWCAP = {16: 0xDC0065C2, 26: 0xAEF60000}
_Z_TYPES = {
    13: ("2964", "2965"),
    14: ("3906", "3907"),
    15: ("8561", "8562"),
    16: ("3931", "3932"),
    17: ("9175", "9176"),
}
_Z_VECTORS = {13: "vx", 14: "vx vxd vxe", 15: "vx vxd vxe vxe2", 16: "vx vxd vxe vxe2 nnpa", 17: "vx vxd vxe vxe2 nnpa"}
_BITS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "aarch64": {
        **{name: (16, bit) for name, bit in {"asimd": 1, "asimdhp": 10, "asimddp": 20, "sve": 22}.items()},
        **{name: (26, bit) for name, bit in {"sve2": 1, "svebf16": 12, "i8mm": 13, "bf16": 14}.items()},
    },
    "ppc64le": {
        **{name: (16, bit) for name, bit in {"vsx": 7, "altivec": 28}.items()},
        **{name: (26, bit) for name, bit in {"arch_2_07": 31, "arch_3_00": 23, "arch_3_1": 18, "mma": 17}.items()},
    },
    "s390x": {name: (16, bit) for name, bit in {"vx": 11, "vxe": 13, "vxe2": 15, "nnpa": 20}.items()},
    "riscv64": {"v": (16, 21)},
}
"""The word of the auxiliary vector and the bit of each feature."""


def auxv(values: Mapping[int, int], order: Literal["little", "big"] = "little") -> bytes:
    """An auxiliary vector of 64-bit pairs, with others before them and its end."""
    return b"".join(word.to_bytes(8, order) for pair in ((33, 26), *values.items(), (0, 0)) for word in pair)


def _features(machine: str, found: set[str]) -> frozenset[str]:
    """Those of a processor, with those of the wheel's library."""
    vectors = {"x86_64": "avx2", "aarch64": "asimd", "ppc64le": "vsx"}.get(machine)
    own = {"native_kernels", "graphs", *(("packed_weights",) if vectors in found else ())}
    return frozenset(found | own if _NATIVE else found)


def _x86(
    flags: str, arch: str, version: int, dtypes: tuple[str, ...], *, known: bool = True, needs: str = ""
) -> PlatformExample:
    text = f"processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: mmx\n"
    return PlatformExample(
        name=f"x86 with {flags}",
        files={"/proc/cpuinfo": text, "/proc/meminfo": _MEMORY},
        machine="AMD64" if version == 3 else "x86_64",
        facts={
            "name": "cpu",
            "arch": arch,
            "device_type": "cpu",
            "arch_family": "x86_64",
            "arch_version": (version,),
            "features": _features("x86_64", {*flags.split()} - {*_UNNAMED, "sse2"}),
            "dtypes": dtypes,
            "memory_bytes": 16 * _GIB,
            "device_name": "Some CPU @ 2.0GHz",
            "shared_device": True,
            "num_devices": 1,
        },
        known=known,
        needs=needs.split(),
    )


_MEMORY = "MemTotal:       16777216 kB\nMemFree:         1000 kB\nMemAvailable:    8388608 kB\n"
_WIDENED = ("bfloat16",) if _NATIVE else ()
_AVX512 = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni"
_X86 = (
    _x86("fpu sse2", "x86_64", 2, ("float32",)),
    _x86("fpu sse2 avx2", "x86_64", 2, ("float32",), known=False),
    _x86(AVX2, "x86_64-avx2", 3, ("float32", *_WIDENED)),
    _x86(f"{AVX2} avx_vnni avx512f", "x86_64-avx2", 3, ("float32", *_WIDENED), known=False),
    _x86(AVX512, "x86_64-avx512", 4, ("float32", *_WIDENED), known=False),
    _x86(f"{AVX512} avx512_bf16", "x86_64-avx512", 4, ("bfloat16", "float32"), needs=f"{_AVX512} avx512_bf16"),
    _x86(f"{AVX512} amx_tile", "x86_64-avx512", 4, ("float32", *_WIDENED), known=False),
    _x86(AMX, "x86_64-amx", 5, ("bfloat16", "float32", "float16")),
    _x86(f"{AMX} amx_fp16", "x86_64-amx", 5, ("bfloat16", "float32", "float16"), known=False),
)


def _other(machine: str, cpuinfo: str, name: str, *, known: bool = False, **facts: Any) -> PlatformExample:
    """A machine beyond x86. ``facts``: ``found`` are the processor's features, ``label`` its ``arch``."""
    files: dict[str, str | bytes] = {"/proc/cpuinfo": cpuinfo} if cpuinfo else {}
    if vector := facts.pop("vector", None):
        files["/proc/self/auxv"] = auxv(vector, "big" if machine == "s390x" else "little")
    more = {"arch": facts.pop("label"), "features": _features(facts.get("arch_family", machine), facts.pop("found"))}
    every = {"arch_family": machine, "memory_bytes": 0, "device_name": "", **more, **facts}
    return PlatformExample(name=f"{machine}, {name}", files=files, machine=machine, facts=every, known=known)


def _arm_dtypes(found: set[str]) -> tuple[str, ...]:
    half = ("float16",) if "asimdhp" in found else ()
    return ("bfloat16", "float32", *half) if "bf16" in found else ("float32", *half)


def _arm(name: str, implementer: int, part: int, flags: str) -> PlatformExample:
    found = {*flags.split()} & _ARM
    core = f"CPU implementer\t: {implementer:#04x}\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part:#05x}\n"
    text = "".join(f"processor\t: {number}\nFeatures\t: {flags}\n{core}CPU revision\t: 1\n\n" for number in range(2))
    facts = {"arch_version": (9,) if "sve2" in found else (8,), "dtypes": _arm_dtypes(found), "device_name": name}
    label = name.lower().replace(" ", "-")
    return _other("aarch64", text, name, known=name in _KNOWN_PARTS, label=label, found=found, **facts)


def _power(name: str, label: str, version: int, found: set[str], vector: Mapping[int, int]) -> PlatformExample:
    text = (
        f"processor\t: 0\ncpu\t\t: {name} (architected), altivec supported\nclock\t\t: 3550.000000MHz\n"
        "revision\t: 2.0 (pvr 0080 0200)\n\ntimebase\t: 512000000\nmachine\t\t: CHRP IBM,9105-22A\n"
    )
    dtypes = ("bfloat16", "float32", "float16") if "mma" in found else ("float32",)
    facts = {"arch_version": (version,), "dtypes": dtypes, "device_name": name, "vector": vector}
    known = found == (_POWER9 if name == "POWER9" else _POWER10)
    return _other("ppc64le", text, f"{name} with {len(found)} features", known=known, label=label, found=found, **facts)


def _z(generation: int, kind: str) -> PlatformExample:
    vectors = _Z_VECTORS[generation]
    text = (
        f"vendor_id       : IBM/S390\n# processors    : 2\nfeatures\t: esan3 zarch stfle edat te {vectors} vxp sie \n"
        f"processor 0: version = FF,  identification = 0133E8,  machine = {kind}\n"
    )
    found, name = {*vectors.split()} - {"vxd"}, f"IBM z{generation}"
    facts = {"arch_version": (generation,), "dtypes": ("float32",), "device_name": name}
    return _other("s390x", text, kind, known=generation > 13, label=f"z{generation}", found=found, **facts)


def _bits() -> Iterator[PlatformExample]:
    """Containers that hide /proc/cpuinfo, with one feature each."""
    for machine, bits in _BITS.items():
        for name, (word, bit) in bits.items():
            label, version = machine, (0,)
            dtypes: tuple[str, ...] = ("float32",)
            if machine == "aarch64":
                label = "aarch64-bf16" if name == "bf16" else machine
                version, dtypes = (9,) if name == "sve2" else (8,), _arm_dtypes({name})
            elif machine == "ppc64le":
                version = ({"arch_2_07": 8, "arch_3_00": 9, "arch_3_1": 10}.get(name, 0),)
                dtypes = ("bfloat16", "float32", "float16") if name == "mma" else dtypes
            elif machine == "riscv64":
                label, version = "riscv64-v", (1,)
            facts: dict[str, Any] = {"arch_version": version, "dtypes": dtypes, "vector": {word: 1 << bit}}
            yield _other(machine, "", f"{name} alone", label=label, found={name}, **facts)


def _riscv(isa: str, found: set[str], label: str, dtypes: tuple[str, ...], *, known: bool = True) -> PlatformExample:
    text = f"processor\t: 0\nhart\t\t: 0\nisa\t\t: {isa}\nmmu\t\t: sv39\nuarch\t\t: spacemit,x60\n"
    facts: dict[str, Any] = {"arch_version": (int("v" in found),), "dtypes": dtypes}
    return _other("riscv64", text, isa, known=known, label=label, found=found, **facts)


_PLAIN_ARM: dict[str, Any] = {"arch_version": (8,), "dtypes": ("float32",), "label": "aarch64", "found": {"asimd"}}
_CORE = "CPU implementer\t: 0x41\nCPU part\t: {}\n\n"
_UNLIKE = f"Features\t: asimd\n{_CORE.format('0xd4f')}{_CORE.format('0xd0c')}"
_UNHEARD_OF = f"Features\t: asimd\n{_CORE.format('0xfff')}"
_BF16_ARM = {*NEOVERSE_V1.split()} & _ARM
_APPLE = "".join(f"Features\t: {NEON}\nCPU implementer\t: 0x61\nCPU part\t: {part}\n\n" for part in ("0x022", "0x023"))
_APPLE_ARM = {*NEON.split()} & _ARM
_LOONGSON = "processor\t\t: 0\nModel Name\t\t: Loongson-3A6000-HV\nFeatures\t\t: cpucfg lam fpu lsx lasx\n"
_OTHERS = (
    *(_arm(*each) for each in _ARM_PARTS),
    _other("aarch64", "Features\t: fp asimd\n", "without a name", known=True, **_PLAIN_ARM),
    _other("aarch64", _UNLIKE, "cores that are unlike", **_PLAIN_ARM),
    _other("aarch64", _UNHEARD_OF, "an unknown core", **_PLAIN_ARM),
    _other(
        "aarch64",
        f"Features\t: {NEOVERSE_V1}\n",
        "BF16 without a name",
        known=True,
        label="aarch64-bf16",
        found=_BF16_ARM,
        arch_version=(8,),
        dtypes=_arm_dtypes(_BF16_ARM),
    ),
    _other(
        "aarch64",
        _APPLE,
        "two kinds of cores of one chip",
        label="apple-m1",
        found=_APPLE_ARM,
        arch_version=(8,),
        dtypes=_arm_dtypes(_APPLE_ARM),
        device_name="Apple M1",
    ),
    _other("arm64", "Features\t: fp asimd\n", "as Apple says", arch_family="aarch64", **_PLAIN_ARM),
    _power("POWER9", "power9", 9, _POWER9, _POWER9_HWCAP),
    _power("POWER10", "power10", 10, _POWER10, _POWER10_HWCAP),
    _power("POWER11", "power11", 11, _POWER10, _POWER10_HWCAP),
    # A hypervisor may hold features back: what the kernel offers counts, not the name.
    _power("POWER10", "power10", 10, {"altivec", "vsx"}, {16: 0xDC0065C2}),
    _other("ppc64le", "", "unknown", known=True, label="ppc64le", found=set(), arch_version=(0,), dtypes=("float32",)),
    *(_z(generation, kind) for generation, kinds in _Z_TYPES.items() for kind in kinds),
    _other("s390x", "", "unknown", known=True, label="s390x", found=set(), arch_version=(0,), dtypes=("float32",)),
    _riscv("rv64imafdc", set(), "riscv64", ("float32",)),
    _riscv("rv64imafdcv_zicbom_zfh_zfhmin_zvfh_svinval", {"v", "zfh", "zvfh"}, "riscv64-v", ("float32", "float16")),
    _riscv("rv64gcv_zvfbfwma", {"v", "zvfbfwma"}, "riscv64-v", ("bfloat16", "float32"), known=False),
    _riscv("rv64gcv_zvfbfmin", {"v", "zvfbfmin"}, "riscv64-v", ("float32",), known=False),
    *_bits(),
    _other("loongarch64", "", "unheard of", label="loongarch64", found=set(), arch_version=(0,), dtypes=("float32",)),
    _other(
        "loongarch64",
        _LOONGSON,
        "unheard of, with a name",
        label="loongarch64",
        found=set(),
        arch_version=(0,),
        dtypes=("float32",),
        device_name="Loongson-3A6000-HV",
    ),
    _other("an odd/one", "", "named oddly", label="an_odd_one", found=set(), arch_version=(0,), dtypes=("float32",)),
    _other("", "", "without a name", label="unknown", found=set(), arch_version=(0,), dtypes=("float32",)),
)


def _limited(name: str, files: Mapping[str, str], limit: int, free: int, **counts: Any) -> PlatformExample:
    """A machine of 16 GiB with 8 GiB to spare, and CPUs 0 to 7, whose process may use less."""
    whole = {"/proc/meminfo": _MEMORY, "/proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-7\n", **files}
    asked = Cores(**{"logical": 8, "physical": 8, **counts})
    said = ((memory_limit, limit), (memory_free, free), (cores, asked))
    return PlatformExample(name=name, files=whole, facts={"memory_bytes": limit}, said=said)


def _threads(host: Host) -> tuple[int, int]:
    found = cores(host)
    return found.advised_threads, found.reserved


def _advised(count: int, quota: str, threads: int, reserved: int) -> PlatformExample:
    files = {"/proc/self/status": f"Cpus_allowed_list:\t0-{count - 1}\n", "/proc/self/cgroup": "0::/\n"}
    files |= {"/sys/fs/cgroup/cpu.max": f"{quota} 100000\n"} if quota else {}
    return PlatformExample(
        name=f"{count} cores, {quota}", files=files, facts={}, said=[(_threads, (threads, reserved))]
    )


_CPU = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_NODE = "/sys/devices/system/node/node{}/cpulist"
_V1 = "/sys/fs/cgroup/cpu,cpuacct"
_unlimited = partial(_limited, limit=16 * _GIB, free=8 * _GIB)
_LIMITS = (
    _unlimited("no groups", {}),
    _unlimited("no limits", {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"}),
    _unlimited("hardware threads", {_CPU.format(cpu): f"{cpu % 4},{cpu % 4 + 4}\n" for cpu in range(8)}, physical=4),
    _unlimited("some CPUs", {"/proc/self/status": "Cpus_allowed_list:\t0-2,5,7-7\n"}, logical=5, physical=5),
    _unlimited(
        "a group around the process's has less",
        {
            "/proc/self/cgroup": "0::/pod/box\n",
            "/sys/fs/cgroup/pod/memory.max": f"{4 * _GIB}\n",
            "/sys/fs/cgroup/pod/memory.current": f"{3 * _GIB}\n",
            "/sys/fs/cgroup/pod/memory.stat": f"anon 1\nactive_file 5\ninactive_file {_GIB}\n",
            "/sys/fs/cgroup/pod/box/memory.max": "max\n",
            "/sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/cpu.max": "800000 100000\n",
        },
        limit=4 * _GIB,
        free=2 * _GIB,
        quota=1.5,
    ),
    _limited(
        "the older hierarchy",
        {
            "/proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n2:freezer:/\n0::/\n",
            "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{6 * _GIB}\n",
            "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{3 * _GIB}\n",
            "/sys/fs/cgroup/memory/box/memory.stat": f"active_file 7\ntotal_inactive_file {_GIB}\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * _GIB}\n",
            f"{_V1}/box/cpu.cfs_quota_us": "250000\n",
            f"{_V1}/box/cpu.cfs_period_us": "100000\n",
            f"{_V1}/cpu.cfs_quota_us": "-1\n",
            f"{_V1}/cpu.cfs_period_us": "100000\n",
        },
        6 * _GIB,
        4 * _GIB,
        quota=2.5,
    ),
    _limited(
        "more is used than the group may",
        {
            "/proc/self/cgroup": "0::/box\n",
            "/sys/fs/cgroup/box/memory.max": f"{2 * _GIB}\n",
            "/sys/fs/cgroup/box/memory.current": f"{3 * _GIB}\n",
        },
        2 * _GIB,
        0,
    ),
    _unlimited(
        "NUMA nodes", {f"/sys/devices/system/node/node{i}/cpulist": f"{4 * i}-{4 * i + 3}\n" for i in range(3)}, nodes=2
    ),
    _advised(1, "", 1, 0),
    _advised(7, "", 7, 0),
    _advised(8, "", 7, 1),
    _advised(64, "", 63, 1),
    _advised(64, "200000", 2, 0),
    _advised(64, "50000", 1, 0),
    _advised(64, "800000", 7, 1),
)

MACHINES = (*_X86, *_OTHERS, *_LIMITS)
"""All of them."""

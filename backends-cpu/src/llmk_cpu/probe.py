"""Detects the CPU, and describes it by the facts that kernels match on. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from llmk.api import OK, Host, PlatformFacts, Probe
from llmk_cpu.machine import flags, memory_limit, model_name
from llmk_cpu.native import library
from llmk_cpu.native.specs import FEATURE, GRAPHS, PACKED, VECTORS
from llmk_cpu.processors import described, extensions

X86_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
)
"""Extensions that become features under the names that Linux gives them."""

_MACHINES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}


def probe(host: Host) -> Probe:
    """A CPU is always usable; what it offers is read from ``/proc/cpuinfo`` and the auxiliary vector."""
    machine = _MACHINES.get(host.machine.lower(), host.machine.lower())
    found = flags(host) | extensions(host, machine)
    native = library.path() is not None
    return Probe(OK, facts_of(machine, found, memory_limit(host), model_name(host), native=native))


def facts_of(
    machine: str, found: frozenset[str], memory_bytes: int = 0, device_name: str = "", *, native: bool = True
) -> PlatformFacts:
    """The facts of a CPU of ``machine`` (as ``uname -m`` has it) with the extensions ``found``, and whether the wheel
    has the C++ library for it. Beyond x86 a known ``device_name`` is its label."""
    version: tuple[int, ...]
    if machine == "x86_64":
        level, suffix = _x86_level(found)
        features = found & frozenset(X86_FEATURES)
        arch, version = f"x86_64{suffix}", (level,)
    else:
        features, arch, version = described(machine, found, device_name)
    return PlatformFacts(
        name="cpu",
        arch=arch,
        device_type="cpu",
        arch_family=machine,
        arch_version=version,
        features=features | _features_of_library(machine, features) if native else features,
        dtypes=_dtypes(features, native=native),
        memory_bytes=memory_bytes,
        device_name=device_name,
        shared_device=True,
    )


def _features_of_library(machine: str, found: frozenset[str]) -> frozenset[str]:
    """Those of a wheel that has the C++ library."""
    return frozenset({FEATURE, GRAPHS, *([PACKED] if VECTORS.get(machine) in found else [])})


def _x86_level(found: frozenset[str]) -> tuple[int, str]:
    """The level of the x86-64 psABI, 5 standing for AMX on top of level 4, and the arch label's suffix."""
    if {"amx_tile", "amx_bf16"} <= found:
        return 5, "-amx"
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= found:
        return 4, "-avx512"
    if {"avx2", "fma"} <= found:
        return 3, "-avx2"
    return 2, ""


def _dtypes(features: frozenset[str], *, native: bool) -> tuple[str, ...]:
    """Dtypes with native arithmetic, and bfloat16 where the C++ library computes it at the speed of float32. In others,
    GEMMs with many rows are far slower than in float32."""
    bfloat16 = features & {"avx512_bf16", "amx_bf16", "bf16", "mma", "zvfbfwma"}
    float16 = features & {"avx512_fp16", "amx_fp16", "asimdhp", "mma", "zvfh"}
    widened = native and not bfloat16 and {"avx2", "fma"} <= features
    return (
        *(("bfloat16",) if bfloat16 else ()),
        "float32",
        *(("float16",) if float16 else ()),
        *(("bfloat16",) if widened else ()),
    )


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_NEON = frozenset({"asimd", "asimddp", "asimdhp"})
_ARM_BF16 = _NEON | {"sve", "i8mm", "bf16", "svebf16"}
_POWER9 = frozenset({"altivec", "vsx", "arch_2_07", "arch_3_00"})
_POWER10 = _POWER9 | {"arch_3_1", "mma"}

_OTHERS: tuple[tuple[str, frozenset[str], str], ...] = (
    ("aarch64", frozenset({"asimd"}), "Armv8"),
    ("aarch64", _ARM_BF16, "Arm with BF16 (Neoverse V1 and later)"),
    ("aarch64", _NEON, "Neoverse N1"),
    ("aarch64", _ARM_BF16, "Neoverse V1"),
    ("aarch64", _ARM_BF16 | {"sve2"}, "Neoverse N2"),
    ("aarch64", _ARM_BF16 | {"sve2"}, "Neoverse V2"),
    ("ppc64le", frozenset(), "POWER, little-endian"),
    ("ppc64le", _POWER9, "POWER9"),
    ("ppc64le", _POWER10, "POWER10"),
    ("ppc64le", _POWER10, "POWER11"),
    ("s390x", frozenset(), "IBM Z"),
    ("s390x", frozenset({"vx", "vxe"}), "IBM z14"),
    ("s390x", frozenset({"vx", "vxe", "vxe2"}), "IBM z15"),
    ("s390x", frozenset({"vx", "vxe", "vxe2", "nnpa"}), "IBM z16"),
    ("s390x", frozenset({"vx", "vxe", "vxe2", "nnpa"}), "IBM z17"),
    ("riscv64", frozenset(), "RISC-V"),
    ("riscv64", frozenset({"v", "zfh", "zvfh"}), "RISC-V with vectors"),
)

KNOWN = (
    facts_of("x86_64", frozenset(), device_name="x86-64 without AVX2"),
    facts_of("x86_64", _AVX2, device_name="x86-64 with AVX2"),
    facts_of("x86_64", _AVX512 | {"avx512_bf16"}, device_name="x86-64 with AVX-512 and BF16 (Zen 4, Cooper Lake)"),
    facts_of(
        "x86_64",
        _AVX512 | {"avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"},
        device_name="x86-64 with AMX (Sapphire Rapids)",
    ),
    *(facts_of(machine, found, device_name=name) for machine, found, name in _OTHERS),
)
"""CPUs for which plans can be made on other machines."""

"""Detects the CPU, and describes it by the facts that kernels match on. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmk.api import OK, Host, PlatformFacts, Probe
from llmk_cpu.machine import flags, memory_limit, model_name
from llmk_cpu.native import library
from llmk_cpu.native.specs import FEATURE

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

ARM_FEATURES = ("asimd", "asimddp", "asimdhp", "sve", "sve2", "i8mm", "bf16", "svebf16")
_MACHINES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}


def probe(host: Host) -> Probe:
    """A CPU is always usable; what it offers is read from ``/proc/cpuinfo``."""
    machine = _MACHINES.get(host.machine.lower(), host.machine.lower())
    native = library.path() is not None
    return Probe(OK, facts_of(machine, flags(host), memory_limit(host), model_name(host), native=native))


def facts_of(
    machine: str, found: frozenset[str], memory_bytes: int = 0, device_name: str = "", *, native: bool = True
) -> PlatformFacts:
    """The facts of a CPU of ``machine`` (as ``uname -m`` has it) with the extensions ``found``, and whether the wheel
    has the C++ library for it."""
    if machine == "x86_64":
        level, suffix = _x86_level(found)
        features = found & frozenset(X86_FEATURES)
        arch, version = f"x86_64{suffix}", (level,)
    elif machine == "aarch64":
        features = found & frozenset(ARM_FEATURES)
        arch = "aarch64-bf16" if "bf16" in found else "aarch64"
        version = (9,) if "sve2" in found else (8,)
    else:
        features, arch, version = frozenset(), re.sub(r"[^\w.-]", "_", machine) or "unknown", (0,)
    return PlatformFacts(
        name="cpu",
        arch=arch,
        device_type="cpu",
        arch_family=machine,
        arch_version=version,
        features=features | {FEATURE} if native else features,
        dtypes=_dtypes(features, native=native),
        memory_bytes=memory_bytes,
        device_name=device_name,
        shared_device=True,
    )


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
    bfloat16 = features & {"avx512_bf16", "amx_bf16", "bf16"}
    float16 = features & {"avx512_fp16", "amx_fp16", "asimdhp"}
    widened = native and not bfloat16 and {"avx2", "fma"} <= features
    return (
        *(("bfloat16",) if bfloat16 else ()),
        "float32",
        *(("float16",) if float16 else ()),
        *(("bfloat16",) if widened else ()),
    )


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}

KNOWN = (
    facts_of("x86_64", _AVX2, device_name="x86-64 with AVX2"),
    facts_of("x86_64", _AVX512 | {"avx512_bf16"}, device_name="x86-64 with AVX-512 and BF16 (Zen 4, Cooper Lake)"),
    facts_of(
        "x86_64",
        _AVX512 | {"avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"},
        device_name="x86-64 with AMX (Sapphire Rapids)",
    ),
    facts_of("aarch64", frozenset({"asimd"}), device_name="Armv8"),
    facts_of(
        "aarch64",
        frozenset({"asimd", "asimddp", "asimdhp", "sve", "i8mm", "bf16", "svebf16"}),
        device_name="Arm with BF16 (Neoverse V1 and later)",
    ),
    facts_of("ppc64le", frozenset(), device_name="POWER, little-endian"),
    facts_of("s390x", frozenset(), device_name="IBM Z"),
)
"""CPUs for which plans can be made on other machines."""

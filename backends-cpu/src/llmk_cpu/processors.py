"""Processors beyond x86: what Linux says of them, and the facts that follow. Imports no torch.

Bits are those of ``AT_HWCAP`` and ``AT_HWCAP2`` in Linux' ``arch/*/include/uapi/asm/{cputable,hwcap,elf}.h``, and have
the names that ``/proc/cpuinfo`` has for them where it has any; parts of Arm are those of
``arch/arm64/include/asm/cputype.h``, machine types of IBM Z those of ``arch/s390/kernel/processor.c``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmk.api import Host

_HWCAP, _HWCAP2 = 16, 26
_PAIR = 16
"""Bytes of an entry of the auxiliary vector: a type and a value."""

_BITS: Mapping[str, Mapping[tuple[int, int], str]] = {
    "aarch64": {
        (_HWCAP, 1): "asimd",
        (_HWCAP, 10): "asimdhp",
        (_HWCAP, 20): "asimddp",
        (_HWCAP, 22): "sve",
        (_HWCAP2, 1): "sve2",
        (_HWCAP2, 12): "svebf16",
        (_HWCAP2, 13): "i8mm",
        (_HWCAP2, 14): "bf16",
    },
    "ppc64le": {
        (_HWCAP, 7): "vsx",
        (_HWCAP, 28): "altivec",
        (_HWCAP2, 31): "arch_2_07",
        (_HWCAP2, 23): "arch_3_00",
        (_HWCAP2, 18): "arch_3_1",
        (_HWCAP2, 17): "mma",
    },
    "s390x": {(_HWCAP, 11): "vx", (_HWCAP, 13): "vxe", (_HWCAP, 15): "vxe2", (_HWCAP, 20): "nnpa"},
    "riscv64": {(_HWCAP, ord("v") - ord("a")): "v"},
}
_CPUINFO: Mapping[str, frozenset[str]] = {"riscv64": frozenset({"v", "zfh", "zvfh", "zvfbfmin", "zvfbfwma"})}
"""Features that only ``/proc/cpuinfo`` names."""

_ARM: Mapping[tuple[int, int], str] = {
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse N1",
    (0x41, 0xD40): "Neoverse V1",
    (0x41, 0xD49): "Neoverse N2",
    (0x41, 0xD4F): "Neoverse V2",
    (0x41, 0xD83): "Neoverse V3AE",
    (0x41, 0xD84): "Neoverse V3",
    (0x41, 0xD8E): "Neoverse N3",
    (0x46, 0x001): "A64FX",
    (0xC0, 0xAC3): "AmpereOne",
    **dict.fromkeys([(0x61, part) for part in (0x022, 0x023, 0x024, 0x025, 0x028, 0x029)], "Apple M1"),
    **dict.fromkeys([(0x61, part) for part in (0x032, 0x033, 0x034, 0x035, 0x038, 0x039)], "Apple M2"),
}
"""Names by implementer and part. Chips of Apple have two kinds of cores."""

_Z: Mapping[str, int] = {
    "2964": 13,
    "2965": 13,
    "3906": 14,
    "3907": 14,
    "8561": 15,
    "8562": 15,
    "3931": 16,
    "3932": 16,
    "9175": 17,
    "9176": 17,
}
"""Generations by machine type."""


def extensions(host: Host, machine: str) -> frozenset[str]:
    """What the kernel says in the auxiliary vector, which containers that hide ``/proc/cpuinfo`` leave; POWER has its
    extensions nowhere else. Empty for x86."""
    bits, order = _BITS.get(machine, {}), "big" if machine in ("s390x", "ppc64") else "little"
    try:
        vector = host.path("/proc/self/auxv").read_bytes()
    except OSError:
        return frozenset()
    words = [int.from_bytes(vector[at : at + 8], order) for at in range(0, len(vector) // _PAIR * _PAIR, 8)]  # type: ignore[arg-type]
    values = dict(zip(words[::2], words[1::2], strict=True))
    return frozenset(name for (kind, bit), name in bits.items() if values.get(kind, 0) >> bit & 1)


def isa_extensions(cpuinfo: str) -> frozenset[str]:
    """Those of RISC-V's ``isa`` line: single letters, then names (``rv64imafdcv_zicsr_zvfh``)."""
    found = re.search(r"^isa\s*:\s*rv64(\w*)", cpuinfo, re.MULTILINE)
    letters, *names = found[1].split("_") if found else [""]
    return frozenset(letters) | frozenset(names)


def name_in(cpuinfo: str) -> str:
    """A processor's name, or ``""``, as where cores of one machine go by different names."""
    if power := re.search(r"^cpu\s*:\s*(POWER\d+)", cpuinfo, re.MULTILINE):
        return power[1]
    if (z := re.search(r"machine = (\d{4})", cpuinfo)) and z[1] in _Z:
        return f"IBM z{_Z[z[1]]}"
    makers, parts = (re.findall(rf"^CPU {each}\s*:\s*0x([0-9a-f]+)", cpuinfo, re.M) for each in ("implementer", "part"))
    names = {_ARM.get((int(maker, 16), int(part, 16)), "") for maker, part in zip(makers, parts, strict=False)}
    return names.pop() if len(names) == 1 else ""


def described(machine: str, found: frozenset[str], name: str) -> tuple[frozenset[str], str, tuple[int, ...]]:
    """Features, label and version of an architecture that is not x86. The version is that of the instruction set on Arm
    (8, 9), the generation on POWER and IBM Z, and whether there are vectors on RISC-V; 0: unknown."""
    features = found & (frozenset(_BITS.get(machine, {}).values()) | _CPUINFO.get(machine, frozenset()))
    label = re.sub(r"[^\w.-]", "_", machine) or "unknown"
    known = name.removeprefix("IBM ").lower().replace(" ", "-")
    generation = re.fullmatch(r"(?:power|z)(\d+)", known)
    if machine == "aarch64":
        plain = f"{label}-bf16" if "bf16" in features else label
        return features, known if name in _ARM.values() else plain, (9,) if "sve2" in features else (8,)
    if machine == "riscv64":
        return features, f"{label}-v" if "v" in features else label, (int("v" in features),)
    if generation:
        return features, known, (int(generation[1]),)
    isa = {"arch_2_07": 8, "arch_3_00": 9, "arch_3_1": 10}
    return features, label, (max((isa.get(feature, 0) for feature in features), default=0),)

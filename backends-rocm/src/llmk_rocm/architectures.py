"""What AMD's architectures offer, as sets of features, and the machines for which plans can be made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from llmk.api import PlatformFacts

_CDNA = frozenset({"mfma", "wave64"})
_RDNA = frozenset({"wmma", "wave32", "lds_64k"})

FEATURES: Mapping[str, frozenset[str]] = {
    "gfx90a": _CDNA | {"lds_64k"},
    "gfx942": _CDNA | {"lds_64k", "fp8_fnuz"},
    "gfx950": _CDNA | {"lds_160k", "fp8", "fp4"},
    "gfx1100": _RDNA,
    "gfx1101": _RDNA,
    "gfx1151": _RDNA | {"unified_memory"},
    "gfx1200": _RDNA | {"fp8"},
    "gfx1201": _RDNA | {"fp8"},
}
"""By the compiler's name of the architecture. From AMD's instruction set manuals (CDNA2 to CDNA4, RDNA3 to RDNA4):
matrix instructions and their 8 and 4-bit formats, threads per wave, and local memory (LDS) per workgroup.

``fp8`` is the format of checkpoints (OCP); ``fp8_fnuz`` is AMD's earlier one with half the range, which no checkpoint
has."""


def facts_of(
    arch: str,
    version: tuple[int, ...],
    *,
    memory_bytes: int = 0,
    device_name: str = "",
    num_devices: int = 1,
    triton: bool = True,
) -> PlatformFacts:
    """The facts of GPUs of a known architecture. torch's ROCm build calls its devices ``cuda``."""
    return PlatformFacts(
        name="rocm",
        arch=arch,
        device_type="cuda",
        arch_family="gfx",
        arch_version=version,
        features=FEATURES[arch] | {"asynchronous", "graphs"} | ({"triton"} if triton else set()),
        dtypes=("bfloat16", "float16", "float32"),
        memory_bytes=memory_bytes,
        num_devices=num_devices,
        device_name=device_name,
    )


KNOWN = tuple(
    facts_of(arch, version, memory_bytes=mib << 20, device_name=name)
    for arch, version, mib, name in (
        ("gfx942", (9, 4, 2), 196592, "AMD Instinct MI300X"),
        ("gfx942", (9, 4, 2), 262128, "AMD Instinct MI325X"),
        ("gfx90a", (9, 0, 10), 65520, "AMD Instinct MI250X"),
        ("gfx90a", (9, 0, 10), 65520, "AMD Instinct MI210"),
        ("gfx950", (9, 5, 0), 294896, "AMD Instinct MI355X"),
        ("gfx1100", (11, 0, 0), 24560, "AMD Radeon RX 7900 XTX"),
        ("gfx1101", (11, 0, 1), 16368, "AMD Radeon RX 7800 XT"),
        ("gfx1151", (11, 5, 1), 52757, "AMD Radeon 8060S"),
        ("gfx1200", (12, 0, 0), 16304, "AMD Radeon RX 9060 XT"),
        ("gfx1201", (12, 0, 1), 16304, "AMD Radeon RX 9070 XT"),
        ("gfx1201", (12, 0, 1), 32624, "AMD Radeon AI PRO R9700"),
    )
)
"""With the memory (MiB) that the driver reports; of a device with unified memory, it depends on the firmware's and the
kernel's settings. ``--on rocm`` means the first, ``--on rocm/gfx942`` the first of the architecture; ``--on
rocm/mi325x`` selects one by name."""

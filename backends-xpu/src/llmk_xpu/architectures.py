"""What the architectures of Intel's GPUs offer, as sets of features, and which card has which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmk.api import PlatformFacts

_XE2 = frozenset({"xmx", "int8", "fp64", "block_2d", "subgroup16", "subgroup32", "slm_128k"})
_XE_LPG = frozenset({"fp64", "subgroup8", "subgroup16", "subgroup32", "slm_64k", "unified_memory"})

FEATURES: Mapping[str, frozenset[str]] = {
    "pvc": _XE2,
    "bmg": _XE2,
    "dg2": frozenset({"xmx", "int8", "subgroup8", "subgroup16", "subgroup32", "slm_64k"}),
    "lnl": _XE2 | {"unified_memory"},
    "ptl": _XE2 | {"unified_memory"},
    "arl": _XE_LPG | {"xmx", "int8"},
    "mtl": _XE_LPG,
}
"""By the compiler's name of the architecture. From Intel's compute runtime (its tables of SLM and fp64) and the XMX
sections of the oneAPI GPU optimization guide.

``xmx`` are matrix units (the instruction DPAS), which have bfloat16, float16 and, with ``int8``, 8-bit integers, but no
fp8: none of these chips multiplies it. ``block_2d`` loads a tile of a matrix by one instruction. Sub-groups are what a
warp is elsewhere; matrix instructions run with 16 threads, on ``dg2`` and ``arl`` with 8. ``slm`` is the local memory
of a work-group."""

VERSIONS: Mapping[str, tuple[int, int]] = {
    "dg2": (12, 55),
    "pvc": (12, 60),
    "mtl": (12, 70),
    "arl": (12, 74),
    "bmg": (20, 1),
    "lnl": (20, 4),
    "ptl": (30, 0),
}
"""The version of the first chip of each, as the driver says it."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A kind of card: its architecture, what it is sold as, how many stacks of it torch shows as a device each, and the
    memory of one in GiB (0: it depends on the card, or is the host's)."""

    arch: str
    name: str
    stacks: int = 1
    memory_gib: int = 0


_MAX, _FLEX = "Intel Data Center GPU Max", "Intel Data Center GPU Flex"
_ARC, _PRO = "Intel Arc", "Intel Arc Pro"
_GRAPHICS = "Intel Graphics"

CHIPS: Mapping[int, Chip] = {
    **dict.fromkeys((0x0BD5, 0x0BD6), Chip("pvc", f"{_MAX} 1550", 2, 64)),
    0x0BD4: Chip("pvc", f"{_MAX} 1550VG", 2, 64),
    **dict.fromkeys((0x0BD7, 0x0BD8), Chip("pvc", f"{_MAX} 1350", 2, 48)),
    0x0B69: Chip("pvc", f"{_MAX} 1450", 2, 64),
    **dict.fromkeys((0x0BD9, 0x0BDA, 0x0BDB), Chip("pvc", f"{_MAX} 1100", 1, 48)),
    0x0B6E: Chip("pvc", f"{_MAX} 1100C", 1, 48),
    **dict.fromkeys((0x0BE0, 0x0BE1, 0x0BE5), Chip("pvc", _MAX)),
    0xE20B: Chip("bmg", f"{_ARC} B580", memory_gib=12),
    0xE20C: Chip("bmg", f"{_ARC} B570", memory_gib=10),
    0xE211: Chip("bmg", f"{_PRO} B60", memory_gib=24),
    0xE212: Chip("bmg", f"{_PRO} B50", memory_gib=16),
    **dict.fromkeys((0xE202, 0xE209, 0xE20D, 0xE210, 0xE215, 0xE216), Chip("bmg", f"{_ARC} B-series")),
    **dict.fromkeys((0xE220, 0xE221, 0xE222, 0xE223), Chip("bmg", f"{_PRO} B-series")),
    0x56A0: Chip("dg2", f"{_ARC} A770"),
    0x56A1: Chip("dg2", f"{_ARC} A750", memory_gib=8),
    0x56A2: Chip("dg2", f"{_ARC} A580", memory_gib=8),
    **dict.fromkeys((0x56A5, 0x56BA), Chip("dg2", f"{_ARC} A380", memory_gib=6)),
    **dict.fromkeys((0x56A6, 0x56BB), Chip("dg2", f"{_ARC} A310", memory_gib=4)),
    **dict.fromkeys((0x56BE, 0x56BF, 0x56AF, 0x56A3, 0x56A4, 0x56BC, 0x56BD), Chip("dg2", f"{_ARC} A-series")),
    0x5690: Chip("dg2", f"{_ARC} A770M", memory_gib=16),
    **dict.fromkeys(range(0x5691, 0x5698), Chip("dg2", f"{_ARC} A-series mobile")),
    **dict.fromkeys((0x56B0, 0x56B1, 0x56B2, 0x56B3), Chip("dg2", f"{_PRO} A-series")),
    **dict.fromkeys((0x56C0, 0x56C2), Chip("dg2", f"{_FLEX} 170", memory_gib=16)),
    0x56C1: Chip("dg2", f"{_FLEX} 140", memory_gib=6),
    **dict.fromkeys((0x6420, 0x64A0, 0x64B0), Chip("lnl", f"{_ARC} 140V")),
    **dict.fromkeys((*range(0xB080, 0xB088), 0xB08F, 0xB090, 0xB0A0, 0xB0B0), Chip("ptl", f"{_GRAPHICS} (Xe3)")),
    **dict.fromkeys((0x7D51, 0x7DD1), Chip("arl", f"{_ARC} 140T")),
    **dict.fromkeys((0x7D40, 0x7D45, 0x7D55, 0x7D60, 0x7DD5), Chip("mtl", f"{_GRAPHICS} (Xe-LPG)")),
    **dict.fromkeys((0x7D41, 0x7D67, 0xB640), Chip("mtl", f"{_GRAPHICS} (Xe-LPG)")),
}
"""By PCI device number, from the kernel's include/drm/intel/pciids.h and, for names, the compute runtime's
devices_base.inl and the PCI ID Repository."""


def facts_of(
    arch: str,
    *,
    memory_bytes: int = 0,
    device_name: str = "",
    num_devices: int = 1,
    triton: bool = True,
    graphs: bool = True,
) -> PlatformFacts:
    """The facts of GPUs of a known architecture. Without matrix units, bfloat16 is only emulated."""
    features = FEATURES[arch] | {"asynchronous"}
    return PlatformFacts(
        name="xpu",
        arch=arch,
        device_type="xpu",
        arch_family="xe",
        arch_version=VERSIONS[arch],
        features=features | ({"triton"} if triton else set()) | ({"graphs"} if graphs else set()),
        dtypes=("bfloat16", "float16", "float32") if "xmx" in features else ("float16", "float32"),
        memory_bytes=memory_bytes,
        num_devices=num_devices,
        device_name=device_name,
    )


KNOWN = tuple(
    facts_of(arch, memory_bytes=gib << 30, device_name=name)
    for arch, name, gib in (
        ("pvc", f"{_MAX} 1550", 64),
        ("pvc", f"{_MAX} 1100", 48),
        ("bmg", f"{_ARC} B580", 12),
        ("bmg", f"{_PRO} B60", 24),
        ("bmg", f"{_PRO} B50", 16),
        ("dg2", f"{_ARC} A770", 16),
        ("dg2", f"{_FLEX} 170", 16),
        ("lnl", f"{_ARC} 140V", 0),
        ("ptl", f"{_GRAPHICS} (Xe3)", 0),
        ("arl", f"{_ARC} 140T", 0),
        ("mtl", f"{_GRAPHICS} (Xe-LPG)", 0),
    )
)
"""With the memory of one device (of a Max 1550, that is one of its two stacks; 0: the host's), and with torch's XPU
build, which requires Triton for these GPUs and has graphs. ``--on xpu`` means the first, ``--on xpu/bmg`` the first of
the architecture; ``--on xpu/b60`` selects one by name."""

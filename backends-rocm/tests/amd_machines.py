"""Machines with AMD GPUs as their sysfs shows them, written into a folder.

Each GPU names where its numbers come from; what a source lacks is left out, and the probe does without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmk.api import Host

NODES = "sys/class/kfd/kfd/topology/nodes"
GPU_NODE = {"cpu_cores_count": 0, "vendor_id": 4098, "domain": 0, "num_xcc": 1}


@dataclass(frozen=True)
class Card:
    """One GPU: the node's ``properties``, its memory bank, and the name on the board (``""``: none)."""

    source: str
    properties: Mapping[str, int]
    memory_bytes: int
    board: str = ""
    revision: str = "00"


def _node(version: int, device: int, simds: int, wave: int, lds: int = 64, **more: int) -> dict[str, int]:
    given = {"gfx_target_version": version, "device_id": device, "simd_count": simds, "wave_front_size": wave}
    return {**given, "lds_size_in_kb": lds, "simd_per_cu": 4 if wave == 64 else 2, **more}


_CONFIGS = "ROCm/rocm-systems, emulation/rocjitsu/configs"

MI250X = Card(
    f"{_CONFIGS}/gfx90a_mi210_kmd.json (memory, waves, LDS of a gfx90a); a half has 110 units; libdrm's amdgpu.ids",
    _node(90010, 0x7408, 440, 64),
    68702699520,
)
MI300X = Card(
    f"{_CONFIGS}/gfx942_cdna3_kmd.json; memory as the driver reports it, 16 MiB less than 192 GiB",
    _node(90402, 0x74A1, 1216, 64, num_xcc=8, unique_id=9895604649984),
    206141652992,
    "AMD Instinct MI300X",
)
MI325X = Card(
    "as MI300X, with libdrm's number and 256 GiB",
    _node(90402, 0x74A5, 1216, 64, num_xcc=8),
    274861129728,
    "AMD Instinct MI325X",
)
MI355X = Card(
    f"{_CONFIGS}/gfx950_mi355x_kmd.json, which has the capture of an MI350X; the name alone is changed",
    _node(90500, 30112, 1024, 64, 160, unique_id=5929628898254127105),
    309220868096,
    "AMD Instinct MI355X",
)
RX_7900 = Card(
    "tinygrad/tinygrad, test/mockgpu/amd/amddriver.py: the properties of a Radeon RX 7900 XTX",
    _node(110000, 29772, 192, 32, location_id=34304, unique_id=11673270660693242239),
    25753026560,
    revision="C8",
)
STRIX_HALO = Card(f"{_CONFIGS}/gfx1151.json", _node(110501, 5510, 64, 32), 55319121920)
RX_9070 = Card(
    f"{_CONFIGS}/gfx1201_r9700.json, the same chip; libdrm's amdgpu.ids; 16 GiB",
    _node(120001, 0x7550, 128, 32),
    17095983104,
    revision="C0",
)
FUTURE = Card(
    "gfx1250 in torch's and ROCm's sources; the rest is made up", _node(120500, 0x75B0, 1024, 32, 320), 432 << 30
)
OWN_GRAPHICS = Card("gfx1036, the graphics of Ryzen 7000; libdrm's amdgpu.ids", _node(100306, 0x164E, 4, 32), 536870912)
WITHOUT_VERSION = Card(
    "a kernel before 5.14, whose nodes lack gfx_target_version", _node(0, 0x740F, 416, 64), 68702699520
)

IDS = """# List of AMDGPU IDs
#
# Syntax:
# device_id,\trevision_id,\tproduct_name        <-- single tab after comma

1.0.0
7408,\t00,\tAMD Instinct MI250X
744C,\tC8,\tAMD Radeon RX 7900 XTX
7550,\tC0,\tAMD Radeon RX 9070 XT
"""


@dataclass
class Machine:
    """A folder as a machine. ``files`` are written as they are."""

    root: Path
    files: dict[str, str] = field(default_factory=dict)

    def host(self, **environ: str) -> Host:
        """The machine, with these variables."""
        for path, text in self.files.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return Host(root=self.root, environ=environ, machine="x86_64", system="Linux")


def machine(root: Path, cards: Sequence[Card], *, processors: int = 1) -> Machine:
    """A machine with the driver and these cards, after the nodes of its processors."""
    made = Machine(root, {"dev/kfd": "", "usr/share/libdrm/amdgpu.ids": IDS, "sys/module/amdgpu/version": "6.12.12\n"})
    for number in range(processors):
        made.files[f"{NODES}/{number}/properties"] = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n"
    for index, card in enumerate(cards):
        node, minor = f"{NODES}/{processors + index}", 128 + index
        properties = {**GPU_NODE, **card.properties, "drm_render_minor": minor}
        made.files[f"{node}/properties"] = "".join(f"{name} {value}\n" for name, value in properties.items())
        banks = (("0", 1, card.memory_bytes), ("1", 0, 1 << 40))
        for bank, heap, size in banks:
            made.files[f"{node}/mem_banks/{bank}/properties"] = f"heap_type {heap}\nsize_in_bytes {size}\nflags 0\n"
        made.files[f"sys/class/drm/renderD{minor}/device/revision"] = f"0x{card.revision.lower()}\n"
        if card.board:
            made.files[f"sys/class/drm/renderD{minor}/device/product_name"] = f"{card.board}\n"
        made.files[f"dev/dri/renderD{minor}"] = ""
    return made


def on_bus(root: Path, *, driver: bool) -> Machine:
    """A machine with a card on the PCI bus and a network card, with or without a driver that doesn't know the first."""
    files = {}
    for address, vendor, kind in (("0000:03:00.0", "0x1002", "0x120000"), ("0000:04:00.0", "0x8086", "0x020000")):
        files[f"sys/bus/pci/devices/{address}/vendor"] = f"{vendor}\n"
        files[f"sys/bus/pci/devices/{address}/class"] = f"{kind}\n"
    if driver:
        files["sys/module/amdgpu/version"] = "6.3.6\n"
        files[f"{NODES}/0/properties"] = "cpu_cores_count 64\nsimd_count 0\n"
    return Machine(root, files)

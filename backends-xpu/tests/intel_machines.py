"""Machines with Intel GPUs as their sysfs shows them, written into a folder.

Each GPU names where its numbers come from; what a source lacks is left out, and the probe does without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmk.api import Host

LEVEL_ZERO = "usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1.6.33578"
"""As the package libze-intel-gpu1 of the compute runtime 25.18 has it."""


@dataclass(frozen=True)
class Card:
    """One GPU: its PCI device number, its place on the bus, its driver (``""``: none), and what the driver says of its
    memory by file below ``device``, or below the card with ``../``."""

    source: str
    device: int
    slot: str
    driver: str = "xe"
    memory: Mapping[str, int] = field(default_factory=dict)
    kind: str = "0x030000"


B580 = Card(
    "kernel log in intel/media-driver#1917: xe, e20b, VRAM[0, 0] of 0x300000000; igt's xe_sysfs_tile names the file",
    0xE20B,
    "0000:03:00.0",
    memory={"tile0/physical_vram_size_bytes": 0x300000000},
)
B60 = Card("as B580, with the number of the PCI ID Repository, and 24 GiB", 0xE211, "0000:83:00.0", memory={
    "tile0/physical_vram_size_bytes": 24 << 30,
})  # fmt: skip
MAX_1550 = Card(
    "torch's properties on Aurora: two devices of 64 GiB a card; i915 of the out-of-tree driver: no file of memory",
    0x0BD5,
    "0000:4d:00.0",
    "i915",
    kind="0x038000",
)
MAX_1550_XE = Card(
    "as MAX_1550, with xe, which has a folder for each tile",
    0x0BD5,
    "0000:9a:00.0",
    memory={f"tile{tile}/physical_vram_size_bytes": 64 << 30 for tile in (0, 1)},
    kind="0x038000",
)
A770 = Card("upstream's i915, which says nothing of memory; number of pciids.h", 0x56A0, "0000:0a:00.0", "i915")
A770_LMEM = Card(
    "as A770, with a driver that has lmem_total_bytes, as Intel's packages had",
    0x56A0,
    "0000:0a:00.0",
    "i915",
    {"../lmem_total_bytes": 16 << 30},
)
LUNAR_LAKE = Card("pytorch/pytorch#159728: Intel(R) Graphics [0x64a0], Linux 6.11", 0x64A0, "0000:00:02.0")
PANTHER_LAKE = Card("pytorch/pytorch#194576: Intel(R) Graphics [0xb080]", 0xB080, "0000:00:02.0")
METEOR_LAKE = Card("number of pciids.h", 0x7D55, "0000:00:02.0", "i915")
UHD_770 = Card("the graphics of a Core i7-12700, Xe-LP; number of pciids.h", 0x4680, "0000:00:02.0", "i915")
FUTURE = Card("Crescent Island in pciids.h; the rest is made up", 0x674C, "0000:05:00.0", kind="0x038000")
PASSED_ON = Card("a card that is passed to a virtual machine", 0xE20B, "0000:03:00.0", "vfio-pci")


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


def machine(root: Path, cards: Sequence[Card], *, level_zero: str = LEVEL_ZERO) -> Machine:
    """A machine with these cards, which have a number where they have a driver for graphics, and a card of another
    vendor before them."""
    made = Machine(root, {"proc/sys/kernel/osrelease": "6.14.0-29-generic\n"})
    made.files["sys/class/drm/card0/device/vendor"] = "0x1a03\n"
    made.files["sys/class/drm/card0-VGA-1/status"] = "connected\n"
    if level_zero:
        made.files[level_zero] = ""
        made.files[level_zero.partition(".so.1")[0] + ".so.1"] = ""
    for index, card in enumerate(cards):
        uevent = (f"DRIVER={card.driver}\n" if card.driver else "") + (
            f"PCI_CLASS={card.kind[2:]}\nPCI_ID=8086:{card.device:04X}\nPCI_SLOT_NAME={card.slot}\n"
        )
        device = {
            "vendor": "0x8086\n",
            "device": f"{card.device:#06x}\n",
            "class": f"{card.kind}\n",
            "uevent": uevent,
        }
        places = [f"sys/bus/pci/devices/{card.slot}"]
        if card.driver in ("xe", "i915"):
            own = f"sys/class/drm/card{index + 1}"
            places.append(f"{own}/device")
            made.files[f"{own}/device/drm/card{index + 1}/dev"] = f"226:{index + 1}\n"
            made.files[f"{own}/device/drm/renderD{128 + index}/dev"] = f"226:{128 + index}\n"
            made.files[f"dev/dri/renderD{128 + index}"] = ""
            for name, size in card.memory.items():
                path = f"{own}/{name[3:]}" if name.startswith("../") else f"{own}/device/{name}"
                made.files[path] = f"{size}\n"
        made.files |= {f"{place}/{name}": text for place in places for name, text in device.items()}
    return made

"""The GPUs of a machine as the kernel's drivers describe them in sysfs. Opens no device, and imports no torch.

A GPU with a driver (``xe``, or the older ``i915``) is a ``card`` below :data:`CARDS`, whose ``device`` is its folder on
the PCI bus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmk.api import Host
from llmk_xpu.architectures import CHIPS, FEATURES, Chip

CARDS = "/sys/class/drm"
PCI = "/sys/bus/pci/devices"
DRIVERS = ("xe", "i915")

_VENDOR = "0x8086"
_OWN_SLOT = ":00:02.0"
_CLASSES = ("0x0300", "0x0380", "0x0302", "0x1200")
"""PCI classes of displays and of processing accelerators."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as torch sees it: a card, or one of a card's stacks. ``arch`` and ``name`` are made of the number if
    the chip is unknown; ``memory_bytes`` is 0 if unknown; ``render`` is the file that programs open."""

    device: int
    arch: str
    name: str
    memory_bytes: int
    slot: str
    driver: str
    render: str

    @property
    def integrated(self) -> bool:
        """Whether it is a processor's own graphics, with the host's memory. Of an unknown chip, its
        place on the bus says so, which is the same in every processor."""
        return "unified_memory" in FEATURES[self.arch] if self.known else self.slot.endswith(_OWN_SLOT)

    @property
    def known(self) -> bool:
        """Whether its architecture is in the table."""
        return self.arch in FEATURES


def read_gpus(host: Host) -> list[Gpu]:
    """All GPUs with a driver, as Level Zero numbers them: cards before processors' graphics, then by their place on the
    bus; each stack is a device of its own, unless ``ZE_FLAT_DEVICE_HIERARCHY`` joins them."""
    joined = host.environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT").upper() == "COMPOSITE"
    found = [gpu for card in _cards(host) for gpu in _gpus(host, card, joined=joined)]
    return sorted(found, key=lambda gpu: (gpu.integrated, gpu.slot))


def on_bus(host: Host) -> list[tuple[str, str]]:
    """The GPUs of Intel on the PCI bus, with or without a driver: what each is, and its driver."""
    found = []
    for path in _folders(host, PCI):
        folder = f"{PCI}/{path.name}"
        if host.read(f"{folder}/vendor").strip() == _VENDOR and host.read(f"{folder}/class").startswith(_CLASSES):
            device = _number(host, f"{folder}/device")
            name = CHIPS[device].name if device in CHIPS else "Intel GPU"
            found.append((f"{name} ({device:#06x})", _uevent(host, folder, "DRIVER")))
    return found


def _cards(host: Host) -> Iterator[str]:
    for path in _folders(host, CARDS):
        folder = f"{CARDS}/{path.name}"
        if re.fullmatch(r"card\d+", path.name) and host.read(f"{folder}/device/vendor").strip() == _VENDOR:
            yield folder


def _gpus(host: Host, card: str, *, joined: bool) -> list[Gpu]:
    """The devices of a card."""
    folder = f"{card}/device"
    number = _number(host, f"{folder}/device")
    chip = CHIPS.get(number) or Chip(f"{number:#06x}", f"Intel GPU {number:#06x}")
    count = 1 if joined else chip.stacks
    memory = _memory(host, card) or chip.memory_gib * chip.stacks << 30
    render = next((path.name for path in _folders(host, f"{folder}/drm") if path.name.startswith("renderD")), "")
    gpu = Gpu(
        device=number,
        arch=chip.arch,
        name=chip.name,
        memory_bytes=memory // count,
        slot=_uevent(host, folder, "PCI_SLOT_NAME"),
        driver=_uevent(host, folder, "DRIVER"),
        render=f"/dev/dri/{render}" if render else "",
    )
    return [gpu] * count


def _memory(host: Host, card: str) -> int:
    """The card's own memory as its driver says it, in bytes: ``xe`` says it for each tile, some versions of ``i915``
    for the card. Upstream's ``i915`` doesn't."""
    tiles = [path.name for path in _folders(host, f"{card}/device") if re.fullmatch(r"tile\d+", path.name)]
    places = ("physical_vram_size_bytes", "memory/physical_vram_size_bytes")
    files = [f"{card}/device/{tile}/{place}" for tile in tiles for place in places]
    return sum(_number(host, file) for file in (*files, f"{card}/lmem_total_bytes"))


def _uevent(host: Host, folder: str, name: str) -> str:
    lines = (line.partition("=") for line in host.read(f"{folder}/uevent").splitlines())
    return next((value for key, _, value in lines if key == name), "")


def _number(host: Host, path: str) -> int:
    text = host.read(path).strip()
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _folders(host: Host, path: str) -> list[Path]:
    try:
        return sorted(host.path(path).iterdir())
    except OSError:
        return []

"""The GPUs of a machine as the kernel's driver describes them in sysfs. Opens no device, and imports no torch.

The compute driver (KFD) has a folder per node below :data:`NODES`, with a file ``properties`` of a name and a number a
line. Processors are nodes without ``simd_count``. ROCm numbers GPUs in the order of their nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmk.api import Host

MODULE = "/sys/module/amdgpu"
NODES = "/sys/class/kfd/kfd/topology/nodes"
PCI = "/sys/bus/pci/devices"

_NAMES = ("/usr/share/libdrm/amdgpu.ids", "/opt/amdgpu/share/libdrm/amdgpu.ids")
"""Names of cards by PCI device and revision, from libdrm."""
_VENDOR = "0x1002"
_CLASSES = ("0x03", "0x12")
"""PCI classes of displays and of processing accelerators."""
_LOCAL_HEAPS = (1, 2)
"""Memory banks on the device: visible to the host, or not."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``version`` is ``(9, 4, 2)`` for gfx942, empty where the driver is too old to say; ``uuid`` is as
    ``ROCR_VISIBLE_DEVICES`` takes it; ``render`` is the file that programs open, empty if the driver names none."""

    version: tuple[int, ...]
    name: str
    memory_bytes: int
    uuid: str
    render: str

    @property
    def arch(self) -> str:
        """The compiler's name of the architecture: ``gfx942``, ``gfx90a``."""
        if not self.version:
            return "unknown"
        major, minor, step = self.version
        return f"gfx{major}{minor:x}{step:x}"


def read_gpus(host: Host) -> list[Gpu]:
    """All GPUs that this process may see, in ROCm's order. Nodes that a container hides can't be read."""
    numbers = [int(path.name) for path in _folders(host, NODES) if path.name.isdecimal()]
    nodes = [(number, _properties(host, f"{NODES}/{number}/properties")) for number in sorted(numbers)]
    return [_gpu(host, number, node) for number, node in nodes if node.get("simd_count")]


def count_on_bus(host: Host) -> int:
    """How many GPUs of AMD the PCI bus has, with or without a driver."""
    devices = (path.name for path in _folders(host, PCI))
    return sum(
        host.read(f"{PCI}/{name}/vendor").strip() == _VENDOR and host.read(f"{PCI}/{name}/class").startswith(_CLASSES)
        for name in devices
    )


def _gpu(host: Host, number: int, node: Mapping[str, int]) -> Gpu:
    version = node.get("gfx_target_version", 0)
    minor = node.get("drm_render_minor", 0)
    return Gpu(
        version=(version // 10000, version // 100 % 100, version % 100) if version else (),
        name=_name(host, node.get("device_id", 0), minor),
        memory_bytes=_memory(host, number),
        uuid=f"GPU-{node.get('unique_id', 0):016x}",
        render=f"/dev/dri/renderD{minor}" if minor else "",
    )


def _memory(host: Host, number: int) -> int:
    folders = _folders(host, f"{NODES}/{number}/mem_banks")
    banks = [_properties(host, f"{NODES}/{number}/mem_banks/{folder.name}/properties") for folder in folders]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _LOCAL_HEAPS)


def _name(host: Host, device: int, minor: int) -> str:
    """The card's name: from the board, or from libdrm's list, or its PCI number."""
    folder = f"/sys/class/drm/renderD{minor}/device"
    if name := host.read(f"{folder}/product_name").strip():
        return name
    revision = host.read(f"{folder}/revision").strip().removeprefix("0x")
    for line in "\n".join(map(host.read, _NAMES)).splitlines():
        fields = [field.strip() for field in line.split(",", 2)]
        if len(fields) == 3 and fields[0].lower() == f"{device:x}" and fields[1].lower() == revision.lower():
            return fields[2]
    return f"AMD GPU {device:#06x}"


def _properties(host: Host, path: str) -> dict[str, int]:
    lines = (line.split() for line in host.read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in lines if len(pair) == 2 and pair[1].isdecimal()}


def _folders(host: Host, path: str) -> list[Path]:
    folder = host.path(path)
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []

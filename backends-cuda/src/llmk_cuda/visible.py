"""Which GPUs ``CUDA_VISIBLE_DEVICES`` makes visible, by the rules of CUDA's programming guide."""

from __future__ import annotations

import os
from collections.abc import Sequence

from llmk_cuda.nvml import Device

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(devices: Sequence[Device], setting: str | None) -> list[Device]:
    """The devices that CUDA shows, in the order in which it numbers them.

    ``setting`` is the variable's value, a list of indices or of UUIDs, which may be abbreviated as long as they are
    unique; ``None``: not set, so all are visible. Devices after the first invalid entry are hidden; a duplicate hides
    all devices.
    """
    if setting is None:
        return list(devices)
    found: list[Device] = []
    for entry in setting.split(","):
        device = _named(devices, entry.strip())
        if device is None:
            break
        if device in found:
            return []
        found.append(device)
    return found


def number_by_bus() -> None:
    """Makes CUDA number devices as the facts (and nvidia-smi) do, by PCI bus; its default order is by speed. The
    setting is read when CUDA is initialized."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def _named(devices: Sequence[Device], entry: str) -> Device | None:
    if entry.isdecimal():
        return devices[int(entry)] if int(entry) < len(devices) else None
    matching = [device for device in devices if entry and device.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None

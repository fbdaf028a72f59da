"""Which GPUs ``CUDA_VISIBLE_DEVICES`` leaves, by the rules of CUDA's programming guide."""

from __future__ import annotations

import os
from collections.abc import Sequence

from llmk_cuda.nvml import Device

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(devices: Sequence[Device], setting: str | None) -> list[Device]:
    """The devices that CUDA shows, in the order in which it numbers them.

    ``setting`` is the variable's value, a list of indices or of UUIDs, which may be cut short where they stay unique;
    ``None``: not set, so all are visible. Those behind the first entry that names no device are hidden, and one that is
    named twice hides all.
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
    """Has CUDA number devices as the facts (and nvidia-smi) do, by PCI bus; its own order is by speed. It is read when
    CUDA begins."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def _named(devices: Sequence[Device], entry: str) -> Device | None:
    if entry.isdecimal():
        return devices[int(entry)] if int(entry) < len(devices) else None
    matching = [device for device in devices if entry and device.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None

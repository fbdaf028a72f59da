"""Machines with GPUs that are not here, as folders with a driver's library that :file:`nvml_fixture.c` plays."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmk.api import Host
from llmk_cuda.nvml import LIBRARY, Device

GIB = 1 << 30
SOURCE = Path(__file__).with_name("nvml_fixture.c")
FOLDER = "usr/lib/x86_64-linux-gnu"


def gpu(number: int, name: str, memory_gib: int, capability: tuple[int, int]) -> Device:
    """A device whose UUID starts with ``GPU-`` and its number."""
    return Device(f"GPU-{number:08x}-aaaa-bbbb-cccc-ddddeeeeffff", name, memory_gib * GIB, capability)


H200 = gpu(0xB0, "NVIDIA H200", 140, (9, 0))
T4 = gpu(0xB1, "Tesla T4", 16, (7, 5))
V100 = gpu(0xB2, "Tesla V100", 32, (7, 0))


def machine(
    root: Path,
    devices: Sequence[Device] = (),
    *,
    driver: str = "580.159.04",
    cuda: int = 13000,
    init: int = 0,
    lost: int = -1,
    environ: Mapping[str, str] | None = None,
) -> Host:
    """A host with a driver. ``init`` is the error with which it refuses to start, ``lost`` a device that is broken."""
    folder = root / FOLDER
    folder.mkdir(parents=True)
    rows = "".join(
        f'{{"{d.uuid}","{d.name}",{d.memory_bytes}ULL,{d.capability[0]},{d.capability[1]}}},' for d in devices
    )
    defined = {"DRIVER": f'"{driver}"', "CUDA": cuda, "INIT": init, "LOST": lost, "DEVICES": rows}
    flags = [f"-D{name}={value}" for name, value in defined.items()]
    subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", folder / LIBRARY, SOURCE], check=True)
    return Host(root=root, environ=dict(environ or {}), machine="x86_64", system="Linux")

"""Examples for the conformance kit: what the environment shows of devices. Files say nothing of them."""

from __future__ import annotations

from llmk_nova.probe import MEMORY, VISIBLE
from llmk_testing.platform_example import PlatformExample

_FACTS = {
    "name": "nova",
    "arch": "n1",
    "device_type": "nova",
    "arch_family": "nova",
    "arch_version": (1,),
    "dtypes": ("float32", "bfloat16"),
    "features": frozenset(),
    "shared_device": False,
    "device_name": "Nova N1 (simulated)",
}
MACHINES = (
    PlatformExample(name="one device", facts={**_FACTS, "num_devices": 1, "memory_bytes": 4 << 30}, known=True),
    PlatformExample(
        name="three devices with less memory",
        environ={VISIBLE: "0,2,5", MEMORY: "1000"},
        facts={**_FACTS, "num_devices": 3, "memory_bytes": 1000},
    ),
    PlatformExample(name="none is shown", environ={VISIBLE: ""}, refused=["no_visible_device"]),
)
"""All of them."""

"""Examples for the conformance kit: machines by their files, which need not be here, and what is true of them."""

from __future__ import annotations

from llmk_testing.platform_example import PlatformExample

_FACTS = {"name": "acme", "device_type": "cpu", "dtypes": ("float32",), "device_name": "acme one"}
MACHINES = [
    PlatformExample(
        name="a server", machine="x86_64", facts={**_FACTS, "arch": "x86_64", "arch_version": (1,)}, known=True
    ),
    PlatformExample(name="a board", machine="aarch64", facts={**_FACTS, "arch_family": "aarch64"}, known=True),
    PlatformExample(name="an unknown machine", machine="", facts={**_FACTS, "arch": "unknown", "arch_family": ""}),
]

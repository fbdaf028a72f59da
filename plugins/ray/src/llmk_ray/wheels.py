"""Whether a node has the wheels that the application was built with: a request whose replica is lost is made again by
another, and must get the same answer there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from importlib import metadata

OTHERS = ("torch", "transformers", "tokenizers")
"""What else answers depend on."""


def versions() -> dict[str, str]:
    """Of what is installed here, by name."""
    found = {each.name: each.version for each in metadata.distributions()}
    return {name: version for name, version in found.items() if name.startswith("llmk") or name in OTHERS}


def check(expected: Mapping[str, str]) -> None:
    """Raises RuntimeError where this node has other versions of what both have: where the application is built, such as
    on a head without a device, other plugins may be installed."""
    here = versions()
    differ = [
        f"{name} is {here[name]}, not {version}"
        for name, version in sorted(expected.items())
        if here.get(name, version) != version
    ]
    if differ:
        raise RuntimeError(
            f"{socket.gethostname()} can't stand in for other nodes: {', '.join(differ)}; have the same wheels on all"
        )

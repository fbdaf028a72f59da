"""What Linux says of a machine. Imports no torch."""

from __future__ import annotations

import re

from llmk.api import OK, Host, PlatformFacts, Probe, no

GENERATIONS = {"avx2": 2, "avx512f": 3}
"""Of x86, by the flag that each has first."""


def probe(host: Host) -> Probe:
    """Usable on x86 under Linux."""
    if host.system != "Linux" or host.machine not in ("x86_64", "AMD64"):
        return Probe(no("machine", wanted="Linux on x86_64", found=f"{host.system} on {host.machine}"))
    return Probe(OK, facts_of(flags(host), total_bytes(host)))


def facts_of(found: frozenset[str], memory: int = 0) -> PlatformFacts:
    """The facts of a processor with these flags."""
    version = max((number for flag, number in GENERATIONS.items() if flag in found), default=1)
    return PlatformFacts(
        name="grove",
        arch=f"g{version}",
        device_type="cpu",
        arch_family="grove",
        arch_version=(version,),
        features=frozenset({"graphs"} | (found & GENERATIONS.keys())),
        dtypes=("float32", "bfloat16") if version > 1 else ("float32",),
        memory_bytes=memory,
        shared_device=True,
        device_name=f"Grove of generation {version}",
    )


KNOWN = tuple(facts_of(frozenset(names)) for names in ((), ("avx2",), ("avx2", "avx512f")))


def flags(host: Host) -> frozenset[str]:
    """Of the first processor."""
    found = re.search(r"^flags\s*: (.*)$", host.read("/proc/cpuinfo"), re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def cores(host: Host) -> int:
    """Those that the process may use."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", host.read("/proc/self/status"), re.MULTILINE)
    spans = [part.partition("-") for part in found[1].split(",")] if found else []
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans) or 1


def total_bytes(host: Host) -> int:
    """The machine's memory; 0 where it is not known."""
    return _kilobytes(host, "MemTotal") << 10


def free_bytes(host: Host) -> int:
    """What programs may still allocate."""
    return _kilobytes(host, "MemAvailable") << 10


def _kilobytes(host: Host, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB$", host.read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) if found else 0

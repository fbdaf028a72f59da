"""Detects TPUs by what the kernel shows of them. Touches no device, and imports no JAX."""

from __future__ import annotations

import os
import re
from collections import Counter

from llmk.api import OK, Host, PlatformFacts, Probe, Verdict, no
from llmk_tpu.kernels import INTERPRETER, MOSAIC

_VENDOR = "0x1ae0"
_GENERATIONS = {"0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "v7x"}
"""By the PCI id of the device. Source: ``jax/_src/hardware_utils.py`` of JAX 0.10."""
_ACCELERATOR_TYPES = {"v4": "v4", "v5p": "v5p", "v5litepod": "v5e", "v5e": "v5e", "v6e": "v6e", "tpu7x": "v7x"}
"""By the first part of ``TPU_ACCELERATOR_TYPE``, which Google's machines and containers set."""
_HBM_GIB = {"v4": 32, "v5p": 95, "v5e": 16, "v6e": 32, "v7x": 96}
"""Memory of a device as JAX counts devices. Source: the system architecture pages of Google Cloud TPU, 2026."""
_VERSIONS = {"v4": (4,), "v5e": (5, 0), "v5p": (5, 1), "v6e": (6, 0), "v7x": (7, 0)}
EMULATED = "emulated"

_INSTALL = "pip install 'llmk-backends-tpu[tpu]'"
_EMULATE = "--set plugin.tpu.emulate=true runs the same programs on the CPU"


def facts_of(generation: str, num_devices: int = 1) -> PlatformFacts:
    """The facts of machines with ``num_devices`` TPUs of a generation."""
    return PlatformFacts(
        name="tpu",
        arch=generation,
        device_type="",
        arch_family="tpu",
        arch_version=_VERSIONS[generation],
        features=frozenset({"asynchronous", MOSAIC}),
        dtypes=("bfloat16", "float32"),
        memory_bytes=_HBM_GIB[generation] << 30,
        num_devices=num_devices,
        device_name=f"TPU {generation}",
    )


KNOWN = tuple(facts_of(generation, 0) for generation in _VERSIONS)
"""Of as many devices as a plan wants."""

_EMULATION = PlatformFacts(
    name="tpu",
    arch=EMULATED,
    device_type="",
    features=frozenset({"asynchronous", INTERPRETER}),
    dtypes=("float32",),
    num_devices=0,  # as many as a plan wants
    device_name="this machine's CPU, through JAX",
)


def probe(host: Host) -> Probe:
    """Usable where there is a TPU, and JAX with its library; or where the plugin is to emulate one. Reports all
    reasons against it."""
    verdict = OK
    if not host.has_module("jax"):
        extra = "jax" if _emulates(host) else "tpu"
        verdict &= no("missing_module", wanted="jax", found="none", hint=f"pip install 'llmk-backends-tpu[{extra}]'")
    if _emulates(host):
        return Probe(verdict, _EMULATION)
    generation, count = _chips(host)
    nodes = _nodes(host)
    if not generation:
        found = f"{len(nodes)} device nodes of unknown kind" if nodes else "none"
        return Probe(verdict & no("no_device", wanted="a TPU on the PCI bus", found=found, hint=_EMULATE))
    verdict &= _judge_nodes(host, nodes)
    if not host.has_module("libtpu"):
        verdict &= no("missing_module", wanted="libtpu, JAX's driver of TPUs", found="none", hint=_INSTALL)
    facts = facts_of(generation, count)
    return Probe(verdict, facts, unused=() if verdict else (facts.device_name,) * count)


def _emulates(host: Host) -> bool:
    return str(host.options.get("emulate", "")).lower() in ("true", "1", "yes", "on")


def _chips(host: Host) -> tuple[str, int]:
    """The generation of the machine's TPUs, and how many there are; empty and 0: none are known. Containers that don't
    show the PCI bus say in their environment what they have."""
    found: Counter[str] = Counter()
    for vendor in sorted(host.path("/sys/bus/pci/devices").glob("*/vendor")):
        if _text(host, vendor.parent.name, "vendor") == _VENDOR:
            found[_GENERATIONS.get(_text(host, vendor.parent.name, "device"), "")] += 1
    del found[""]
    if found:
        return found.most_common(1)[0]
    generation = _ACCELERATOR_TYPES.get(host.environ.get("TPU_ACCELERATOR_TYPE", "").partition("-")[0], "")
    count = len(_nodes(host))
    return (generation, count) if count else ("", 0)


def _text(host: Host, device: str, file: str) -> str:
    return host.read(f"/sys/bus/pci/devices/{device}/{file}").strip()


def _nodes(host: Host) -> list[str]:
    """What programs open to use TPUs: ``/dev/accel0`` with Google's driver, ``/dev/vfio/0`` with the kernel's."""
    accel = [f"/dev/{node.name}" for node in host.path("/dev").glob("accel*") if re.fullmatch(r"accel\d+", node.name)]
    vfio = [f"/dev/vfio/{node.name}" for node in host.path("/dev/vfio").glob("*") if node.name.isdecimal()]
    return sorted(accel or vfio)


def _judge_nodes(host: Host, nodes: list[str]) -> Verdict:
    if not nodes:
        wanted = "/dev/accel* or /dev/vfio/*"
        return no("no_driver", wanted=wanted, found="none", hint="start the container with the TPU's devices")
    if not os.access(host.path(nodes[0]), os.R_OK | os.W_OK):
        hint = "run as root, or add the user to the group that owns it"
        return no("no_permission", wanted=f"{nodes[0]} to be readable and writable", found="it is not", hint=hint)
    return OK

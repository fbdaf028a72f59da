"""Detects AMD GPUs and whether torch can use them, without opening a device. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from llmk.api import OK, Host, Probe, Verdict, no
from llmk_rocm.architectures import FEATURES, KNOWN, facts_of
from llmk_rocm.topology import MODULE, NODES, Gpu, count_on_bus, read_gpus
from llmk_rocm.torch_build import TorchBuild, installed_torch
from llmk_rocm.visible import LIBRARY, OVERRIDE, RUNTIME, serving, visible

COMPUTE = "/dev/kfd"
_RDNA2 = 10
_NEAR: Mapping[tuple[int, ...], str] = {(11, 0): "11.0.0", (11, 5): "11.5.1", (12, 0): "12.0.1"}
"""By generation, a known architecture whose programs its other chips run. gfx1250 is another generation than gfx1201:
it has other instructions."""
_INSTALL_TORCH = "install torch's ROCm build, as torch's own instructions say"
_INSTALL_DRIVER = "install the amdgpu driver, as AMD's instructions say"
_UPDATE_DRIVER = "install a newer amdgpu driver, or a newer kernel"


def probe(host: Host, torch: TorchBuild | None = None) -> Probe:
    """Usable if torch was built for ROCm, and the driver shows a GPU of a known architecture that this user may open.
    ``torch`` is by default the installed build. Reports all reasons against it."""
    verdict = _judge_torch(torch or installed_torch())
    gpus = read_gpus(host)
    if not gpus:
        on_bus = count_on_bus(host)
        return Probe(verdict & _why_none(host, on_bus), unused=("AMD GPU",) * on_bus)
    shown = visible(gpus, host.environ)
    if not shown:
        settings = ", ".join(f"{name}={host.environ[name]!r}" for name in (RUNTIME, *LIBRARY) if name in host.environ)
        found = f"{settings}, of {len(gpus)} GPUs"
        hint = f"unset {RUNTIME} and {LIBRARY[0]}, or list indices as rocminfo counts GPUs, from 0"
        return Probe(verdict & no("no_visible_device", wanted="a visible GPU", found=found, hint=hint))
    alike = [shown[index] for index in serving(shown)]
    first = alike[0]
    if first.arch not in FEATURES:
        return Probe(verdict & _unknown(first), unused=_named(shown))
    facts = facts_of(
        first.arch,
        first.version,
        memory_bytes=min(gpu.memory_bytes for gpu in alike),
        device_name=first.name,
        num_devices=len(alike),
        triton=host.has_module("triton"),
    )
    verdict &= _judge_files(host, alike)
    return Probe(verdict, facts, unused=_named([gpu for gpu in shown if gpu not in alike] if verdict else shown))


def _named(gpus: list[Gpu]) -> tuple[str, ...]:
    """Names of GPUs, without those that no wheel could use."""
    return tuple(f"{gpu.name} ({gpu.arch})" for gpu in gpus if not _is_too_old(gpu))


def _is_too_old(gpu: Gpu) -> bool:
    """Whether it is older than all that have kernels, as most processors' own graphics are."""
    oldest = min(facts.arch_version for facts in KNOWN)
    return gpu.version != () and (gpu.version < oldest or gpu.version[0] == _RDNA2)


def _judge_torch(build: TorchBuild | None) -> Verdict:
    wanted = "torch built with ROCm"
    if build is None:
        return no("package_missing", wanted=wanted, found="not installed", hint=_INSTALL_TORCH)
    if not build.hip:
        return no("torch_without_rocm", wanted=wanted, found=build, hint=_INSTALL_TORCH)
    return OK


def _why_none(host: Host, on_bus: int) -> Verdict:
    """Why the driver shows no GPU, of so many on the PCI bus."""
    if not on_bus:
        return no("no_device", wanted="an AMD GPU", found="none on the PCI bus", hint="`lspci -d 1002:` lists them")
    found = f"{on_bus} on the PCI bus"
    if not host.path(MODULE).exists():
        hint = f"{_INSTALL_DRIVER}, or load it: sudo modprobe amdgpu"
        return no("no_driver", wanted="the driver amdgpu", found=f"{found}, and no driver", hint=hint)
    if not host.path(NODES).exists():
        found = f"amdgpu {_driver(host)}, without compute (KFD)"
        return no("no_driver", wanted="a driver with compute", found=found, hint=_INSTALL_DRIVER)
    found = f"amdgpu {_driver(host)} shows none of {found} to this process"
    hint = f"{_UPDATE_DRIVER}; in a container, pass {COMPUTE} and /dev/dri"
    return no("driver_too_old", wanted="a driver that knows this GPU", found=found, hint=hint)


def _unknown(gpu: Gpu) -> Verdict:
    if not gpu.version:
        found = f"{gpu.name}, without a version"
        return no("driver_too_old", wanted="a driver that says the architecture", found=found, hint=_UPDATE_DRIVER)
    hint = "pip install --upgrade llmk-backends-rocm, whose newer versions may know it"
    if _is_too_old(gpu):
        hint = "Instinct before MI200 and Radeon before RDNA 3 have no kernels here: take another platform"
    if near := _NEAR.get(gpu.version[:2]):
        hint += f"; or set {OVERRIDE}={near}, at your own risk, as for other programs on ROCm"
    found = f"{gpu.arch} ({gpu.name})"
    return no("unknown_architecture", wanted=f"one of {', '.join(FEATURES)}", found=found, hint=hint)


def _judge_files(host: Host, gpus: list[Gpu]) -> Verdict:
    """Whether this user may open the compute driver and the GPUs."""
    verdict = OK
    for path in dict.fromkeys((COMPUTE, *(gpu.render for gpu in gpus))):
        file = host.path(path)
        if not path or not file.exists():
            hint = "in a container, pass it: --device /dev/kfd --device /dev/dri"
            verdict &= no("no_device_file", wanted=path or "a render node of each GPU", found="nothing", hint=hint)
        elif not os.access(file, os.R_OK | os.W_OK):
            hint = "sudo usermod -a -G render,video $USER, and log in again; in a container, --group-add render"
            verdict &= no("no_permission", wanted=f"to open {path}", found="no permission", hint=hint)
    return verdict


def _driver(host: Host) -> str:
    """The version of AMD's own package, or what the kernel has."""
    return host.read(f"{MODULE}/version").strip() or "of the kernel"

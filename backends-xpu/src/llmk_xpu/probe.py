"""Detects Intel GPUs and whether torch can use them, without opening a device. Imports no torch."""

from __future__ import annotations

import os

from llmk.api import OK, Host, Probe, Verdict, no
from llmk_xpu.architectures import FEATURES, facts_of
from llmk_xpu.installed import LIBRARY, TorchBuild, driver_version, has_triton, installed_torch
from llmk_xpu.topology import DRIVERS, Gpu, on_bus, read_gpus
from llmk_xpu.visible import MASK, SELECTOR, serving, visible

OLDEST_DRIVER = (1, 6, 32567)
"""Of Level Zero (the compute runtime 25.05): the oldest with which torch's XPU build was seen to work, on Max 1550."""

_INSTALL_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/xpu"
_INSTALL_DRIVER = "install libze1, libze-intel-gpu1 and intel-opencl-icd, as https://dgpu-docs.intel.com says"
_KERNELS = "xe knows Arc B and Lunar Lake from Linux 6.12 on, Panther Lake from 6.17 on; i915 knows Arc A from 6.2 on"


def probe(host: Host, torch: TorchBuild | None = None) -> Probe:
    """Usable if torch was built for XPUs, Level Zero's driver is there, and the kernel's driver shows a GPU of a known
    architecture that this user may open. ``torch`` is by default the installed build. Reports all reasons against
    it."""
    build = torch or installed_torch()
    verdict = _judge_torch(build)
    gpus = [gpu for gpu in read_gpus(host) if gpu.driver in DRIVERS]
    if not gpus:
        cards = on_bus(host)
        return Probe(verdict & _why_none(host, cards), unused=tuple(name for name, _ in cards))
    verdict &= _judge_library(host)
    shown = visible(gpus, host.environ)
    if not shown:
        settings = ", ".join(f"{name}={host.environ[name]!r}" for name in (MASK, SELECTOR) if name in host.environ)
        hint = f"unset {MASK} and {SELECTOR}, or list indices as `sycl-ls` counts GPUs of level_zero, from 0"
        found = f"{settings}, of {len(gpus)} devices"
        return Probe(verdict & no("no_visible_device", wanted="a visible GPU", found=found, hint=hint))
    alike = [shown[index] for index in serving(shown)]
    first = alike[0]
    if not first.known:
        return Probe(verdict & _unknown(first), unused=_named(shown))
    facts = facts_of(
        first.arch,
        memory_bytes=min(gpu.memory_bytes for gpu in alike),
        device_name=first.name,
        num_devices=len(alike),
        triton=has_triton(),
        graphs=build is not None and build.graphs,
    )
    verdict &= _judge_files(host, alike)
    return Probe(verdict, facts, unused=_named([gpu for gpu in shown if gpu not in alike] if verdict else shown))


def _named(gpus: list[Gpu]) -> tuple[str, ...]:
    """Names of GPUs, without processors' graphics that torch has no support for."""
    return tuple(f"{gpu.name} ({gpu.arch})" for gpu in gpus if gpu.known or not gpu.integrated)


def _judge_torch(build: TorchBuild | None) -> Verdict:
    wanted = "torch built for XPUs"
    if build is None:
        return no("package_missing", wanted=wanted, found="not installed", hint=_INSTALL_TORCH)
    return OK if build.xpu else no("torch_without_xpu", wanted=wanted, found=build, hint=_INSTALL_TORCH)


def _judge_library(host: Host) -> Verdict:
    """Level Zero's driver, which torch's SYCL runtime loads."""
    version = driver_version(host)
    if version is None:
        return no("no_driver", wanted=f"Level Zero's driver, {LIBRARY}", found="no such file", hint=_INSTALL_DRIVER)
    if version and version < OLDEST_DRIVER:
        wanted, found = (".".join(map(str, each)) for each in (OLDEST_DRIVER, version))
        hint = f"{_INSTALL_DRIVER}: the compute runtime 25.05 or newer"
        return no("driver_too_old", wanted=f"Level Zero's driver from {wanted} on", found=found, hint=hint)
    return OK


def _why_none(host: Host, cards: list[tuple[str, str]]) -> Verdict:
    """Why no driver of the kernel shows one of the GPUs on the PCI bus, each with its driver."""
    if not cards:
        hint = "`lspci -d 8086: -nn` lists what there is"
        return no("no_device", wanted="an Intel GPU", found="none on the PCI bus", hint=hint)
    kernel = host.read("/proc/sys/kernel/osrelease").strip() or "of unknown version"
    found = ", ".join(f"{name} with {f'the driver {driver}' if driver else 'no driver'}" for name, driver in cards)
    if any(driver in DRIVERS for _, driver in cards):
        hint = "in a container, pass it: --device /dev/dri"
        return no("no_device_file", wanted="a card in /sys/class/drm", found=f"none, but {found}", hint=hint)
    hint = f"load the driver (sudo modprobe xe), or update the kernel: {_KERNELS}"
    return no("no_driver", wanted="the driver xe or i915", found=f"{found}, on Linux {kernel}", hint=hint)


def _unknown(gpu: Gpu) -> Verdict:
    wanted = f"one of {', '.join(FEATURES)}"
    if gpu.integrated:
        hint = "graphics of processors before Meteor Lake have no support in torch; take another platform"
    else:
        hint = "pip install --upgrade llmk-backends-xpu, whose newer versions may know it"
    return no("unknown_architecture", wanted=wanted, found=f"PCI device {gpu.device:#06x} ({gpu.driver})", hint=hint)


def _judge_files(host: Host, gpus: list[Gpu]) -> Verdict:
    """Whether this user may open the GPUs."""
    verdict = OK
    for gpu in {gpu.slot: gpu for gpu in gpus}.values():
        file = host.path(gpu.render)
        if not gpu.render or not file.exists():
            wanted = gpu.render or f"a render node of {gpu.slot}"
            verdict &= no("no_device_file", wanted=wanted, found="nothing", hint="in a container, pass /dev/dri to it")
        elif not os.access(file, os.R_OK | os.W_OK):
            hint = "sudo usermod -a -G render $USER, and log in again; in a container, --group-add render"
            verdict &= no("no_permission", wanted=f"to open {gpu.render}", found="no permission", hint=hint)
    return verdict

"""Detects NVIDIA GPUs and whether torch can use them, without initializing them. Imports no torch."""

from __future__ import annotations

from itertools import takewhile

from llmk.api import OK, Host, PlatformFacts, Probe, Verdict, no
from llmk_cuda.nvml import Driver, NvmlFailed, read_driver
from llmk_cuda.torch_build import TorchBuild, installed_torch
from llmk_cuda.visible import VARIABLE, visible

_SINCE = {"fp8": (8, 9), "tma": (9, 0), "fp4": (10, 0)}
"""Compute capability from which on tensor cores support fp8 and fp4, and from which on there is TMA."""

_OLDEST = {12: (5, 0), 13: (7, 5)}
"""The least compute capability that each major version of CUDA compiles for."""


def probe(host: Host, torch: TorchBuild | None = None) -> Probe:
    """Usable if the driver is new enough for torch's CUDA and shows a device. ``torch`` is by default the installed
    build. Reports all reasons against it."""
    build = torch or installed_torch()
    verdict = _judge_torch(build)
    try:
        driver = read_driver(host)
    except NvmlFailed as error:
        return Probe(verdict & error.verdict)
    setting = host.environ.get(VARIABLE)
    devices = visible(driver.devices, setting)
    if build is not None and build.cuda:
        verdict &= _judge_driver(driver, build)
    if not driver.devices:
        found = f"none, by driver {driver.version}"
        return Probe(verdict & no("no_device", wanted="an NVIDIA GPU", found=found, hint="`nvidia-smi -L` lists them"))
    if not devices:
        found = f"{VARIABLE}={setting!r}, of {len(driver.devices)} devices"
        hint = f"unset {VARIABLE}, or list indices or UUIDs as `nvidia-smi -L` shows them"
        return Probe(verdict & no("no_visible_device", wanted="a visible GPU", found=found, hint=hint))
    first = devices[0]
    alike = list(takewhile(lambda device: device.capability == first.capability, devices))
    facts = facts_of(
        first.capability,
        memory_bytes=min(device.memory_bytes for device in alike),
        device_name=first.name,
        num_devices=len(alike),
        triton=host.has_module("triton"),
    )
    if build is not None and build.cuda:
        verdict &= _judge_device(facts, build)
    unused = devices[len(alike) :] if verdict else devices
    return Probe(verdict, facts, unused=tuple(device.name for device in unused))


def facts_of(
    capability: tuple[int, int],
    *,
    memory_bytes: int = 0,
    device_name: str = "",
    num_devices: int = 1,
    triton: bool = True,
) -> PlatformFacts:
    """The facts of GPUs of compute capability ``capability``. Only devices of the same kind as the first are counted: a
    plan is made for one kind."""
    features = {name for name, since in _SINCE.items() if capability >= since} | {"asynchronous", "graphs"}
    return PlatformFacts(
        name="cuda",
        arch=f"sm_{capability[0]}{capability[1]}",
        device_type="cuda",
        arch_family="cuda",
        arch_version=capability,
        features=frozenset(features | ({"triton"} if triton else set())),
        dtypes=("bfloat16", "float16", "float32") if capability >= (8, 0) else ("float16", "float32"),
        memory_bytes=memory_bytes,
        num_devices=num_devices,
        device_name=device_name,
    )


KNOWN = tuple(
    facts_of(capability, memory_bytes=mib << 20, device_name=name)
    for capability, mib, name in (
        ((9, 0), 81559, "NVIDIA H100 80GB HBM3"),
        ((9, 0), 143771, "NVIDIA H200"),
        ((8, 0), 81920, "NVIDIA A100-SXM4-80GB"),
        ((7, 5), 15360, "Tesla T4"),
        ((8, 6), 23028, "NVIDIA A10"),
        ((8, 9), 46068, "NVIDIA L40S"),
        ((8, 9), 23034, "NVIDIA L4"),
        ((8, 9), 24564, "NVIDIA GeForce RTX 4090"),
        ((10, 0), 183359, "NVIDIA B200"),
        ((12, 0), 97887, "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ((12, 0), 32607, "NVIDIA GeForce RTX 5090"),
    )
)
"""GPUs for which plans can be made on other machines, with the names and the memory (MiB) that the driver reports.
``--on cuda`` means the first, ``--on cuda/sm_90`` the first of the architecture; ``--on cuda/h200`` selects one by
name."""


def _judge_torch(build: TorchBuild | None) -> Verdict:
    hint = "install a CUDA build of torch, as torch's own instructions say"
    if build is None:
        return no("package_missing", wanted="torch built with CUDA", found="not installed", hint=hint)
    if not build.cuda:
        return no("torch_without_cuda", wanted="torch built with CUDA", found=f"torch {build.version}", hint=hint)
    return OK


def _judge_driver(driver: Driver, build: TorchBuild) -> Verdict:
    if driver.cuda[0] >= build.cuda_major:
        return OK
    return no(
        "driver_too_old",
        wanted=f"a driver for CUDA {build.cuda}, which torch {build.version} is built with",
        found=f"driver {driver.version}, for CUDA {driver.cuda[0]}.{driver.cuda[1]} at most",
        hint=f"update NVIDIA's driver, or install a torch that is built with CUDA {driver.cuda[0]}",
    )


def _judge_device(facts: PlatformFacts, build: TorchBuild) -> Verdict:
    oldest = _OLDEST.get(build.cuda_major, (0, 0))
    if facts.arch_version >= oldest:
        return OK
    return no(
        "arch",
        wanted=f"compute capability {oldest[0]}.{oldest[1]} or more, the least that CUDA {build.cuda} compiles for",
        found=f"{facts.device_name}, {facts.arch}",
        hint=f"install a torch that is built with CUDA {build.cuda_major - 1}",
    )

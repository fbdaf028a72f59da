"""Which GPU is found, and every way in which none can be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_machines import H200, T4, V100, gpu, machine

from llmk.api import Host, Probe
from llmk_cuda.nvml import Device
from llmk_cuda.probe import KNOWN, facts_of, probe
from llmk_cuda.specs import llmk_platforms
from llmk_cuda.torch_build import TorchBuild, read_build
from llmk_cuda.visible import visible

CUDA_13 = TorchBuild("2.11.0+cu130", "13.0")
CUDA_12 = TorchBuild("2.9.1+cu128", "12.8")
CPU_ONLY = TorchBuild("2.13.0+cpu")


def reasons(answer: Probe) -> list[str]:
    return [str(reason) for reason in answer.verdict.reasons]


def test_facts(tmp_path: Path) -> None:
    second = gpu(0xB3, "NVIDIA H200", 139, (9, 0))
    answer = probe(machine(tmp_path, [H200, second]), CUDA_13)
    assert answer.verdict
    facts = answer.facts
    assert facts is not None
    assert (facts.label, facts.arch_family, facts.arch_version) == ("cuda/sm_90", "cuda", (9, 0))
    assert (facts.device_type, facts.device_name, facts.num_devices) == ("cuda", "NVIDIA H200", 2)
    assert facts.memory_bytes == second.memory_bytes, "a plan must fit all devices that it may run on"
    assert facts.features >= {"asynchronous", "graphs", "fp8", "tma"}
    assert facts.dtypes[0] == "bfloat16"


@pytest.mark.parametrize(
    ("capability", "arch", "features", "dtypes"),
    [
        ((7, 5), "sm_75", set(), ("float16", "float32")),
        ((8, 6), "sm_86", set(), ("bfloat16", "float16", "float32")),
        ((8, 9), "sm_89", {"fp8"}, ("bfloat16", "float16", "float32")),
        ((10, 3), "sm_103", {"fp8", "tma", "fp4"}, ("bfloat16", "float16", "float32")),
        ((12, 0), "sm_120", {"fp8", "tma", "fp4"}, ("bfloat16", "float16", "float32")),
    ],
)
def test_what_an_architecture_offers(
    capability: tuple[int, int], arch: str, features: set[str], dtypes: tuple[str, ...]
) -> None:
    facts = facts_of(capability, triton=False)
    assert (facts.arch, facts.dtypes) == (arch, dtypes)
    assert facts.features == features | {"asynchronous", "graphs"}
    assert facts_of(capability).features == facts.features | {"triton"}


def test_devices_of_another_kind_don_t_count(tmp_path: Path) -> None:
    answer = probe(machine(tmp_path, [H200, T4, H200]), CUDA_13)
    facts = answer.facts
    assert facts is not None
    assert answer.unused == ("Tesla T4", "NVIDIA H200")
    assert (facts.device_name, facts.num_devices, facts.memory_bytes) == ("NVIDIA H200", 1, H200.memory_bytes)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [H200, T4, V100]),
        ("1", [T4]),
        ("2, 0", [V100, H200]),
        ("GPU-000000b1", [T4]),
        (f"{V100.uuid},{H200.uuid}", [V100, H200]),
        ("1,-1,0", [T4]),
        ("0,7,1", [H200]),
        ("1,1", []),
        ("GPU-000000b", []),
        ("MIG-5c89852c", []),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices(setting: str | None, expected: list[Device]) -> None:
    assert visible([H200, T4, V100], setting) == expected


def test_the_first_visible_device_is_the_one(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, [H200, T4], environ={"CUDA_VISIBLE_DEVICES": "1"}), CUDA_13).facts
    assert facts is not None
    assert facts.label == "cuda/sm_75"


@pytest.mark.parametrize("setting", ["", "5"])
def test_all_devices_hidden(tmp_path: Path, setting: str) -> None:
    answer = probe(machine(tmp_path, [H200], environ={"CUDA_VISIBLE_DEVICES": setting}), CUDA_13)
    (reason,) = reasons(answer)
    assert not answer.verdict
    assert answer.facts is None
    assert f"found CUDA_VISIBLE_DEVICES='{setting}', of 1 devices" in reason


def test_no_device(tmp_path: Path) -> None:
    (reason,) = reasons(probe(machine(tmp_path), CUDA_13))
    assert reason.startswith("no device: wanted an NVIDIA GPU, found none, by driver 580.159.04")


def test_no_driver_and_no_cuda_in_torch_are_reported_together(tmp_path: Path) -> None:
    no_torch, no_driver = reasons(probe(Host(root=tmp_path, environ={}), CPU_ONLY))
    assert no_torch.startswith("torch without cuda: wanted torch built with CUDA, found torch 2.13.0+cpu")
    assert no_driver.startswith("no driver")


@pytest.mark.parametrize(
    ("cuda", "build", "ok"),
    [(13000, CUDA_13, True), (12080, CUDA_13, False), (12000, CUDA_12, True), (13010, CUDA_12, True)],
)
def test_the_driver_must_support_torch_s_cuda(tmp_path: Path, cuda: int, build: TorchBuild, ok: bool) -> None:
    answer = probe(machine(tmp_path, [H200], driver="570.1", cuda=cuda), build)
    assert answer.verdict.ok is ok
    assert answer.facts is not None, "the machine can be planned for all the same"
    assert answer.unused == (() if ok else ("NVIDIA H200",))
    if not ok:
        (reason,) = reasons(answer)
        assert "wanted a driver for CUDA 13.0, which torch 2.11.0+cu130 is built with" in reason
        assert "found driver 570.1, for CUDA 12.8 at most" in reason
        assert "install a torch that is built with CUDA 12" in reason


@pytest.mark.parametrize(("build", "ok"), [(CUDA_13, False), (CUDA_12, True)])
def test_a_device_too_old_for_torch_s_cuda(tmp_path: Path, build: TorchBuild, ok: bool) -> None:
    answer = probe(machine(tmp_path, [V100]), build)
    assert answer.verdict.ok is ok
    if not ok:
        assert "found Tesla V100, sm_70 (install a torch that is built with CUDA 12)" in reasons(answer)[0]


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("__version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip = None\n", CUDA_13),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", CPU_ONLY),
        ("", TorchBuild("unknown")),
    ],
)
def test_torch_s_build_is_read_from_its_version_file(text: str, build: TorchBuild) -> None:
    assert read_build(text) == build


def test_an_installed_torch_is_not_imported(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (package / "version.py").write_text("__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\n")
    code = "from llmk_cuda.torch_build import installed_torch; print(installed_torch())"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.stdout.strip() == "TorchBuild(version='2.11.0', cuda='13.0')", done.stderr


@pytest.mark.hook("llmk_platforms")
def test_known_machines_have_different_facts() -> None:
    (spec,) = llmk_platforms()
    names = [facts.device_name for facts in spec.known]
    assert spec.known == KNOWN
    assert len(set(names)) == len(names)
    assert spec.known[0].label == "cuda/sm_90"
    assert spec.rank > 0
    assert "llmk-triton" in spec.vouches

"""Asking the driver, played by a compiled library: detection alone can be tested so."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from gpu_machines import FOLDER, H200, T4, machine

from llmk.api import Host
from llmk_cuda.nvml import LIBRARY, NvmlFailed, read_driver


def test_reads_driver_and_devices(tmp_path: Path) -> None:
    driver = read_driver(machine(tmp_path, [H200, T4], cuda=12080))
    assert (driver.version, driver.cuda, driver.devices) == ("580.159.04", (12, 8), (H200, T4))


@pytest.mark.parametrize("lost", [-1, 1])
def test_always_ends_its_session(tmp_path: Path, lost: int) -> None:
    host = machine(tmp_path, [H200, T4], lost=lost)
    try:
        read_driver(host)
    except NvmlFailed:
        assert lost == 1
    assert ctypes.CDLL(str(host.root / FOLDER / LIBRARY)).fixture_sessions() == 0


def refusal(host: Host) -> str:
    with pytest.raises(NvmlFailed) as caught:
        read_driver(host)
    return str(caught.value)


def test_no_library(tmp_path: Path) -> None:
    text = refusal(Host(root=tmp_path, environ={}))
    assert text.startswith("no driver: wanted libnvidia-ml.so.1, found not installed (install NVIDIA's driver")


def test_a_file_that_is_not_a_library(tmp_path: Path) -> None:
    host = machine(tmp_path)
    (tmp_path / FOLDER / LIBRARY).write_text("not a library")
    assert "no driver" in refusal(host)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"init": 9}, "nvmlInit_v2: Driver Not Loaded (error 9)"),
        ({"init": 18}, "nvmlInit_v2: Driver/library version mismatch (error 18)"),
        ({"lost": 0}, "nvmlDeviceGetHandleByIndex_v2: GPU is lost (error 15)"),
        ({"driver": "5" * 300}, "nvmlSystemGetDriverVersion: Unknown Error (error 7)"),
    ],
)
def test_the_drivers_error_is_reported(tmp_path: Path, options: dict[str, int], text: str) -> None:
    assert text in refusal(machine(tmp_path, [H200], **options))  # type: ignore[arg-type]

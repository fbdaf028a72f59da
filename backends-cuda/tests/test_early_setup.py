"""Early setup of a device, before torch is imported, with a compiled library in place of the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llmk.config import load
from llmk.planning.boot import boot
from llmk.planning.packed_boot import early_setup
from llmk_cuda.driver import LIBRARY

SOURCE = Path(__file__).with_name("cuda_fixture.c")
CODE = "import sys, llmk_cuda.early_setup as e; e.early_setup(int(sys.argv[1])); assert 'torch' not in sys.modules"


def run_early_setup(folder: Path, index: int, **environ: str) -> subprocess.CompletedProcess[str]:
    """Sets up a device in a separate process, which finds the driver in ``folder``."""
    command = [sys.executable, "-c", CODE, str(index)]
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)} | environ
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a driver, whose ``cuInit`` returns the fixture's parameter."""
    flag = f"-DINIT={getattr(request, 'param', 0)}"
    subprocess.run(["cc", "-shared", "-fPIC", flag, "-o", tmp_path / LIBRARY, SOURCE], check=True)
    return tmp_path


@pytest.mark.parametrize("index", [0, 1])
def test_a_context_is_made_by_the_order_of_the_bus(driver: Path, index: int) -> None:
    done = run_early_setup(driver, index)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"init 0, order PCI_BUS_ID\nretain {40 + index}\n"


def test_an_order_that_is_set_stays(driver: Path) -> None:
    assert "order FASTEST_FIRST" in run_early_setup(driver, 0, CUDA_DEVICE_ORDER="FASTEST_FIRST").stdout


@pytest.mark.parametrize("driver", [100], indirect=True)
def test_the_driver_says_what_it_can_not(driver: Path) -> None:
    done = run_early_setup(driver, 0)
    assert "RuntimeError: cuInit: CUDA's error 100" in done.stderr
    assert "retain" not in done.stdout


def test_a_device_that_is_not_there(driver: Path) -> None:
    assert "RuntimeError: cuDeviceGet: CUDA's error 101" in run_early_setup(driver, 2).stderr


@pytest.mark.parametrize(("machine", "found"), [("cuda/h200", "llmk_cuda.early_setup:early_setup"), ("cpu", "")])
def test_an_engine_of_one_rank_sets_its_device_up_early(machine: str, found: str) -> None:
    booted = boot(load({}, environ={}), on=machine)
    assert early_setup(booted) == found
    assert early_setup(replace(booted, plan=replace(booted.plan, tensor=2))) == ""

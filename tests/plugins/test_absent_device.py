"""Planning for an accelerator that is not here, from real wheels, and being told why nothing can be served on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scratch import Environment


@pytest.fixture(scope="module")
def laptop(make_environment: Callable[..., Environment], wheels: dict[str, Path]) -> Environment:
    """Has the wheel of a GPU's backend, and a driver that shows no GPU to it."""
    return make_environment(wheels["core"], wheels["models"], wheels["backends-cuda"])


@pytest.mark.slow
@pytest.mark.parametrize("on", ["cuda/sm_90", "cuda/sm_75", "cuda"])
def test_explains_a_gpu_that_is_not_here(laptop: Environment, tmp_path: Path, on: str) -> None:
    done = laptop.llmk("explain", "--on", on, "--json", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    label = f"{plan['platform']['name']}/{plan['platform']['arch']}"
    assert label == (on if "/" in on else "cuda/sm_90")
    linear = {choice["pieces"][0]["id"] for choice in plan["choices"] if choice["kind"] == "linear"}
    assert linear == {"cuda.linear"}
    warned = [warning for warning in plan["warnings"] if "running in float16" in warning]
    assert len(warned) == len(plan["warnings"]) == (on == "cuda/sm_75")


@pytest.mark.slow
def test_says_why_it_can_t_serve(laptop: Environment, tmp_path: Path) -> None:
    done = laptop.llmk("serve", "--port", "0", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 4
    assert "no installed platform is usable here" in done.stderr
    assert "cuda.cuda" in done.stderr
    doctor = laptop.llmk("doctor", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert doctor.returncode == 1
    assert "platform cuda (llmk-backends-cuda 0.1.0) is not usable here" in doctor.stdout
    assert "Traceback" not in doctor.stdout + doctor.stderr

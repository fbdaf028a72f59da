"""A step of a model of 8B parameters compiles for TPUs that are not there, fits their memory, and stays on the
device."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "ahead_of_time.py"
PATIENCE = 1200
"""Seconds: a program that does not fit a TPU's vector memory may keep the compiler busy for ever."""
USABLE_GIB = {"v5e": 15.75, "v6e": 31.25}
"""Memory that programs get of 16 and 32 GiB."""


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("jax") and find_spec("libtpu")),
    reason="libtpu is not installed: pip install 'llmk-backends-tpu[aot]'",
)
@pytest.mark.parametrize("chip", USABLE_GIB)
@pytest.mark.parametrize(("tokens", "tile"), [(64, 1), (512, 32)], ids=["decoding", "with-prompts"])
def test_step_compiles(chip: str, tokens: int, tile: int) -> None:
    """The program is for one chip of the topology."""
    command = [sys.executable, str(SCRIPT), f"{chip}:2x2", str(tokens), str(tile)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(found)
    assert found["arguments"] + found["temporary"] < USABLE_GIB[chip] * 2**30
    assert found["aliased"] >= found["cache"], "the cache is copied"
    assert found["transfers"] == []

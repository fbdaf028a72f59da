"""A step of a model of 8B parameters compiles for TPUs that are not there, for one chip and for four, fits their
memory, and stays on the device."""

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
@pytest.mark.parametrize(
    ("chip", "count", "model"), [("v5e", 1, "dense"), ("v5e", 4, "dense"), ("v6e", 1, "dense"), ("v5e", 1, "experts")]
)
@pytest.mark.parametrize(("tokens", "tile"), [(64, 1), (512, 32)], ids=["decoding", "with-prompts"])
def test_step_compiles(chip: str, count: int, model: str, tokens: int, tile: int) -> None:
    """With the kernels that the plan chooses, and with the cache changed in place."""
    command = [sys.executable, str(SCRIPT), chip, *map(str, (tokens, tile, count)), model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(found)
    assert found["arguments"] + found["temporary"] < USABLE_GIB[chip] * 2**30
    assert found["kernels"]["attention:attention"] == "tpu.ragged_attention"
    assert "tpu_custom_call" in found["custom_calls"]
    assert found["aliased"] >= found["cache"]
    assert found["cache_copies"] == 0
    assert bool(found["all_reduces"]) == (count > 1)
    assert found["transfers"] == []

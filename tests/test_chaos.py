"""A small run of ``benchmarks/chaos.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import MODEST

CHAOS = Path(__file__).parent.parent / "benchmarks" / "chaos.py"


@pytest.mark.slow
def test_nothing_is_forgotten_wrong_or_left_behind() -> None:
    """So few requests don't tell how memory settles; they do tell that it doesn't grow with each."""
    command = [sys.executable, str(CHAOS), "--requests", "240", "--concurrency", "24", "--kills", "2", "--stops", "0"]
    command += ["--memory-slack", "0.1"]
    env = {**os.environ, **MODEST, "LLMK__ENGINE__STANDBY": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("left", "refused 400", "streamed", "whole"):
        assert f"| {kind} | " in done.stdout
    assert done.stdout.count("| engine | ") == 2
    assert "error" not in done.stdout


@pytest.mark.slow
def test_of_three_replicas_two_may_die() -> None:
    """Another one goes on; how memory settles differs by which of them is replaced."""
    command = [sys.executable, str(CHAOS), "--requests", "240", "--concurrency", "24", "--kills", "2", "--stops", "0"]
    command += ["--memory-slack", "0.2", "--", "--replicas", "3", "--select.router.use", "prefix_aware"]
    env = {**os.environ, **MODEST}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| engine | ") == 2
    assert "error" not in done.stdout

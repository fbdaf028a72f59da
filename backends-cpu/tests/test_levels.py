"""GEMMs on every level of instructions below the best one, which other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from levels import LIBRARY

from llmk_cpu.native.library import LEVEL_VARIABLE

HERE = Path(__file__).parent
FILES = ("test_linear_native.py", "test_experts_native.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", LIBRARY.levels[1:])
def test_gemms_agree_with_the_reference_at_lower_levels(level: str) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / file) for file in FILES))
    done = subprocess.run(command, env={**os.environ, LEVEL_VARIABLE: level}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout

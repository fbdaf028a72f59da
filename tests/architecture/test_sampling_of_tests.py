"""The sample of slow tests is a share of them, another for each seed, and the same for the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("case", range(400))
def test_slow(case): ...

@pytest.mark.parametrize("case", range(60))
def test_measured(case): ...

def test_quick(): ...
"""

SLOW_FILE = """
import pytest

pytestmark = pytest.mark.slow_file

def test_one(): ...

def test_other(): ...
"""


def collected(folder: Path, *arguments: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.slow
def test_a_share_of_slow_tests_is_drawn_by_the_seed(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text((ROOT / "tests/support/sample.py").read_text())
    seconds = {f"test_it.py::test_measured[{case}]": 0.7 if case < 20 else 7.0 for case in range(60)}
    (tmp_path / "durations.json").write_text(json.dumps(seconds))
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n slow: seconds\n slow_file: seconds\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    for index in range(40):
        (tmp_path / f"test_slow_{index}.py").write_text(SLOW_FILE)
    one, same, other = (collected(tmp_path, f"--sample-seed={seed}") for seed in ("a", "a", "b"))
    assert one == same != other
    assert "test_it.py::test_quick" in one & other
    slow, known = (sorted(n for n in one if n.startswith(f"test_it.py::test_{k}[")) for k in ("slow", "measured"))
    assert 1 <= len(slow) <= 8, "1 in 200 of 400"
    assert set(list(seconds)[:20]) < set(known)
    assert 21 <= len(known) <= 32, "1 in 10 of 40"
    whole = {name.partition("::")[0] for name in one if name.startswith("test_slow_")}
    assert 1 <= len(whole) <= 10, "1 in 10 of 40"
    assert {f"{file}::test_{test}" for file in whole for test in ("one", "other")} <= one
    assert len(collected(tmp_path, "--full")) == 541
    assert collected(tmp_path, "test_it.py::test_slow[7]") == {"test_it.py::test_slow[7]"}

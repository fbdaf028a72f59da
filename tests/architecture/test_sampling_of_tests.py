"""The sample of slow tests is a share of them, another for each seed, and the same for the same seed."""

from __future__ import annotations

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
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.slow
def test_a_share_of_slow_tests_is_drawn_by_the_seed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n slow: seconds\n slow_file: seconds\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    for index in range(40):
        (tmp_path / f"test_slow_{index}.py").write_text(SLOW_FILE)
    one, same, other = (collected(tmp_path, f"--sample-seed={seed}") for seed in ("a", "a", "b"))
    assert one == same != other
    assert "test_it.py::test_quick" in one & other
    assert 2 <= sum(name.startswith("test_it.py") for name in one) <= 25, "2 in 100 of 400"
    whole = {name.partition("::")[0] for name in one if name.startswith("test_slow_")}
    assert 2 <= len(whole) <= 16, "1 in 5 of 40"
    assert {f"{file}::test_{test}" for file in whole for test in ("one", "other")} <= one
    assert len(collected(tmp_path, "--full")) == 481
    assert collected(tmp_path, "test_it.py::test_slow[7]") == {"test_it.py::test_slow[7]"}

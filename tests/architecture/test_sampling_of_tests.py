"""The sample of slow tests is a share of them, another for each seed, and the same for the same seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("case", range(400))
def test_slow(case): ...

def test_quick(): ...
"""


def collected(folder: Path, *arguments: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_a_share_of_slow_tests_is_drawn_by_the_seed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes seconds\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    one, same, other = (collected(tmp_path, f"--sample-seed={seed}") for seed in ("a", "a", "b"))
    assert one == same != other
    assert "test_it.py::test_quick" in one & other
    assert 4 <= len(one) <= 30, "3 in 100 of 400"
    assert len(collected(tmp_path, "--full")) == 401
    assert collected(tmp_path, "test_it.py::test_slow[7]") == {"test_it.py::test_slow[7]"}

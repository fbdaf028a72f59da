"""Runs pytest, and once more, one at a time, the tests that failed.

Several tests at a time take the processors from one another, so one that waits for a time may fail though nothing is
wrong. One that passes alone is named at the end; one that fails again fails the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
MOST = 5
"""More failures than this are not due to a busy machine."""

TESTS_FAILED = 1
"""pytest's exit status where tests failed, and nothing worse."""


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", "-q"]
    FAILED.unlink(missing_ok=True)
    status = subprocess.call([*pytest, "--dist", "loadfile", "--no-loadscope-reorder", *arguments], cwd=ROOT)
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.is_file() else []
    if status != TESTS_FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"\n{len(failed)} failed with others at the same time; now alone:", *failed, sep="\n  ", flush=True)
    status = subprocess.call([*pytest, *failed], cwd=ROOT)
    if status == 0:
        print("UNSTEADY: these passed only alone, so they depend on time:", *failed, sep="\n  ", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

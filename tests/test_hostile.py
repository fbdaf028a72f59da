"""A few of the cases of ``benchmarks/hostile.py``, drawn: none keeps others waiting for long, or breaks the server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from served import MODEST

HOSTILE = Path(__file__).parent.parent / "benchmarks" / "hostile.py"
SAMPLE, SEED = 8, 0


@pytest.mark.slow
def test_no_client_stops_another() -> None:
    """The bounds are wide: processors are shared with other tests. They still tell seconds from minutes."""
    options = ["--sample", SAMPLE, "--seed", SEED, "--passes", 1, "--seconds-per-case", 1, "--calm-seconds", 4]
    options += ["--warm-up", 1, "--settle", 2, "--fill-seconds", 0, "--within", 60, "--gap", 5, "--ratio", 50]
    options += ["--slowest", 100, "--slack-mib", 512]  # it has not settled yet
    command = [sys.executable, str(HOSTILE), *map(str, options)]
    environment = {**os.environ, **MODEST}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    ) as attack:
        try:
            told, _ = attack.communicate(timeout=240)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(attack.pid, signal.SIGKILL)  # and the server, where it hangs
    assert attack.returncode == 0, told
    assert told.count("| ok |") == SAMPLE + 2, "each case, all of them, and what was before"


def test_every_kind_of_harm_is_among_the_cases() -> None:
    """Cases are named once, and there are as many as was promised."""
    command = [sys.executable, str(HOSTILE), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(names) == len({*names}) >= 60
    for finding in ("A1", "A2", "A3", "A4", "A5", "A7", "A8", "A9"):
        assert f"{finding}: " in done.stdout

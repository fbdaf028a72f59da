"""The environment of an engine's process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from llmk.engine.processes.spawn import spawn, waiting


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_the_environment_says_how_threads_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert waiting() == {"GOMP_SPINCOUNT": "1000"}
    monkeypatch.setenv(name, "7")
    assert waiting() == {}


def test_engines_get_it_and_this_process_is_not() -> None:
    process = spawn()
    try:
        stop = time.monotonic() + 30
        while not (found := Path(f"/proc/{process.pid}/environ").read_bytes()):  # empty until it is set up
            assert time.monotonic() < stop
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    assert b"GOMP_SPINCOUNT=1000" in found.split(b"\0")
    assert "GOMP_SPINCOUNT" not in os.environ

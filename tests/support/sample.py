"""The sample of what is slow that is run by default: another one for each commit, and the same always for one."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
LEAST_SECONDS = 1.5
"""Tests that take less are not kept."""


def runs_all(config: pytest.Config) -> bool:
    """Whether nothing is left out: where that was asked for, or the command line names single tests."""
    return bool(config.getoption("--full")) or any("::" in argument for argument in config.args)


def drawn(name: str, seed: str, share: float) -> bool:
    """Whether a case or file is in the sample: by nothing but its name and the seed, so that all workers agree."""
    digest = blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def seed_of(config: pytest.Config) -> str:
    """What the sample is drawn by."""
    given: str = config.getoption("--sample-seed")
    return given or os.environ.get("SAMPLE_SEED") or _commit()


@cache
def _commit() -> str:
    """The commit that is tested, so that each one has another sample, and the same one always the same."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "0"
    return found.stdout.strip()


@cache
def measured() -> dict[str, float]:
    """How many seconds slow tests took when they were last measured. One that is not here is run always."""
    found: dict[str, float] = json.loads(DURATIONS.read_text())
    return found


def record(seconds: dict[str, float]) -> None:
    """Keeps how long tests ran; what was known of others stays."""
    known = {**measured(), **{name: round(taken, 1) for name, taken in seconds.items()}}
    slow = {name: taken for name, taken in sorted(known.items()) if taken >= LEAST_SECONDS}
    DURATIONS.write_text(json.dumps(slow, indent=0, ensure_ascii=False) + "\n")

"""Makes the fakes importable, here and in engine processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
SUPPORT = str(Path(__file__).resolve().parents[3] / "tests/support")
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture
def child_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes find them and the test device as well."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, SUPPORT, os.environ.get("PYTHONPATH", "")]))

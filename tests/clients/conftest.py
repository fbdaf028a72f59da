"""Where the tests' own modules are found, and whether large packages are installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "core/tests/serve")]


@pytest.fixture
def installs_all(pytestconfig: pytest.Config) -> bool:
    """Whether packages that take minutes to install are installed."""
    return bool(pytestconfig.getoption("--full")) or "LLMK_CLIENTS" in os.environ

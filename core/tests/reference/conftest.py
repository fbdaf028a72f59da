"""Makes the helpers of these tests importable, and sets compute threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Sets torch's compute threads to the parameter."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)

"""Compute threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Sets torch's compute threads to the parameter."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)

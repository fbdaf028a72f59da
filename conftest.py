"""Randomness that tests draw is theirs alone: it doesn't depend on which ran before, in this process or another."""

from __future__ import annotations

import random
import sys

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Once more, as a fixture that serves several tests has drawn for the first of them only."""
    _seed()


def _seed() -> None:
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)

"""Checkpoints that the tests of this package share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmk_testing.checkpoints import write_checkpoint

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a tiny checkpoint, once for equal arguments."""
    made: dict[str, Path] = {}

    def make(model_type: str, **overrides: Any) -> Path:
        key = f"{model_type} {sorted(overrides.items())}"
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("checkpoint") / model_type, model_type, **overrides)
        return made[key]

    return make

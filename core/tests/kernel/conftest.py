"""Real distributions, made on the spot in a folder on ``sys.path``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from starts import write_model
from wheelhouse import Wheelhouse

from llmk.api import Checkpoint
from llmk.planning.checkpoint.folder import read_checkpoint


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Iterator[Wheelhouse]:
    """Where a test installs its plugins; they are gone afterwards."""
    house = Wheelhouse(tmp_path / "site")
    yield house
    house.close()


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> Callable[..., Checkpoint]:
    """Writes a checkpoint's small files and reads them back."""

    def write(text: str = '{"architectures": ["ToyForCausalLM"]}') -> Checkpoint:
        folder = tmp_path / "checkpoint"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(text)
        return read_checkpoint(folder)

    return write


@pytest.fixture
def checkpoint(write_checkpoint: Callable[..., Checkpoint]) -> Checkpoint:
    """A checkpoint of the toy family."""
    return write_checkpoint()


@pytest.fixture
def house(wheelhouse: Wheelhouse) -> Wheelhouse:
    """A platform and a model family are installed."""
    wheelhouse.install_box()
    return wheelhouse


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint folder of the toy family."""
    return write_model(tmp_path / "model")

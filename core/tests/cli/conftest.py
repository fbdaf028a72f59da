"""A command line with plugins made on the spot, in a folder of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "kernel"))

from wheelhouse import Wheelhouse

from llmk.cli.main import main


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Llmk = Callable[..., Ran]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Wheelhouse]:
    """A platform and a model family are installed."""
    house = Wheelhouse(tmp_path / "site")
    house.install_box()
    yield house
    house.close()


@pytest.fixture
def llmk(
    house: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Llmk:
    """Runs a command in this process, with the test's own plugins alone."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        disabled = house.flags()["plugins.disable"]
        monkeypatch.setenv("LLMK__PLUGINS__DISABLE", json.dumps(disabled))
        monkeypatch.setenv("PYTHONPATH", str(house.folder))  # for processes that it starts
        code = main(arguments)
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return run


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A checkpoint folder of the toy family, as a user would name it."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"architectures": ["ToyForCausalLM"]}')
    return "model"

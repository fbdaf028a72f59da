"""A bench of this machine, and distributions made on the spot."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import importlib_metadata as metadata
import pytest
from installed import install
from sample import drawn, runs_all, seed_of

from llmk_testing.bench import Bench

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # for `defects`

Site = Callable[..., str]
SHARE_OF_GOOD = 0.1
"""Of the cases that good ones must pass, so many are run unless all are asked for."""


def pytest_configure(config: pytest.Config) -> None:
    """Good ones pass many cases, some of which take long."""
    import killing

    if not runs_all(config):
        killing.is_drawn = partial(drawn, seed=seed_of(config), share=SHARE_OF_GOOD)


@pytest.fixture(scope="session")
def bench() -> Bench:
    """The best platform here."""
    return Bench.open()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Lays out a distribution, seen by this process and its children, and returns its name."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), HERE, os.environ.get("PYTHONPATH", "")]))

    def add(name: str, specs: str, requires: str = "llmk-core>=0.1,<0.2", **modules: str) -> str:
        install(folder, name, specs, **modules)
        with (folder / f"{name}-1.0.dist-info" / "METADATA").open("a") as file:
            file.write(f"Requires-Dist: {requires}\n" if requires else "")
        metadata.MetadataPathFinder.invalidate_caches()
        return name

    yield add
    metadata.MetadataPathFinder.invalidate_caches()

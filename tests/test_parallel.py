"""Models that several ranks hold between them answer as one process does. The ranks are threads here; those that are
processes are tested in ``test_parallel_processes.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spread import FAMILIES, TIGHT, answers, check, make
from threaded_ranks import ThreadedRanks

from llmk import LLM
from llmk.engine import launch

SHAPES = [(2, 1), (1, 2), (2, 2), (1, 3), (4, 1)]
"""Ranks that cut layers, and stages."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint, and what one process answers."""
    folder = make(tmp_path_factory.mktemp("checkpoint"), request.param)
    with LLM(str(folder), **TIGHT) as llm:
        return folder, answers(llm)


@pytest.mark.parametrize(("tensor", "pipeline"), SHAPES)
def test_same_answers(family: tuple[Path, Any], tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, expected = family
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **TIGHT, parallel={"tensor": tensor, "pipeline": pipeline}) as llm:
        check(answers(llm), expected)

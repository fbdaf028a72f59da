"""Features of the engine change no token: the comparison of benchmarks/equal_tokens.py, which prints the distances."""

from __future__ import annotations

from pathlib import Path

import pytest
from equal_tokens import FEATURES, KINDS, checkpoint, compare


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(request.param, tmp_path_factory.mktemp("kinds"))


@pytest.mark.slow
@pytest.mark.parametrize("feature", [*FEATURES, "all"])
def test_tokens_are_equal(folder: Path, feature: str) -> None:
    result = compare(folder, feature)
    assert result.worked, "the feature was not at work"
    assert result.equal == result.total
    assert result.distance < 2e-4

"""Every kind of causal language model of transformers that llmk serves, against transformers, as kept in
``tools/model_parity.json``."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_parity import read, result_of

KINDS = read()["kinds"]
EQUAL = sorted(kind for kind, result in KINDS.items() if "compared" in result and "failed" not in result)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EQUAL)
def test_what_is_served_is_equal(kind: str, tmp_path: Path) -> None:
    result = result_of(kind, tmp_path / "checkpoint")
    assert "failed" not in result, result["failed"]
    assert result["served"] == KINDS[kind]["served"]
    assert result["compared"].keys() == KINDS[kind]["compared"].keys()

"""Layers may pass on something other than a residual stream, by classes of the family's wheel alone."""

from __future__ import annotations

import pytest
import streams

from llmk_models import dense
from llmk_models.examples import DENSE
from llmk_models.specs import llmk_models
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

(SPEC,) = (spec for spec in llmk_models() if spec.id == "models.dense")


@pytest.mark.slow
def test_a_stream_of_its_own_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, in chunks, on two ranks and in two stages, which hand on one tensor."""
    monkeypatch.setattr(dense, "tree", streams.tree)
    example = next(example for example in DENSE if example.name == "qwen3-bias")
    own = [case for case in cases("model", SPEC, Bench.open("cpu")) if case.name.startswith(f"{example.name}: ")]
    results = [Result.of(case) for case in own]
    assert [result for result in results if result.outcome == "failed"] == []
    assert {result.outcome for result in results} == {"passed"}

"""The suite of model families passes a good one and fails each that is broken on purpose."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llmk.api import ModelSpec
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

sys.path.insert(0, str(Path(__file__).parent))
from defects.model import DEFECTS, Defect


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.open("cpu")


@pytest.fixture(scope="module")
def good(bench: Bench) -> ModelSpec:
    spec = next(each.spec for each in bench.registry.of(ModelSpec) if each.spec.id == "models.dense")
    return replace(spec, examples="defects.model:EXAMPLES")


def test_a_good_family_passes(good: ModelSpec, bench: Bench) -> None:
    results = [Result.of(case) for case in cases("model", good, bench)]
    assert len(results) == 29
    assert [result for result in results if result.outcome != "passed"] == []


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_a_broken_family_fails(defect: Defect, good: ModelSpec, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    defect.plant(monkeypatch)
    broken = defect.change(good)
    (result,) = [
        Result.of(case) for case in cases("model", broken, bench) if case.name.startswith(f"tiny: {defect.killer}")
    ]
    assert result.outcome == "failed", f"{defect.sentence}, and nobody notices: {result}"


def test_a_family_without_examples_is_told_what_is_missing(good: ModelSpec, bench: Bench) -> None:
    (result,) = [Result.of(case) for case in cases("model", replace(good, examples=""), bench)]
    assert result.outcome == "skipped"
    assert "ModelSpec.examples" in result.message

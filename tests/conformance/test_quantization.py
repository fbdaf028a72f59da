"""The suite of quantization methods passes good ones and fails each that is broken on purpose."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmk.api import QuantizationSpec
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

sys.path.insert(0, str(Path(__file__).parent))
from defects.quantization import DEFECTS, Defect


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.open("cpu")


def spec_of(bench: Bench, name: str) -> QuantizationSpec:
    return next(each.spec for each in bench.registry.of(QuantizationSpec) if each.spec.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stored_fp8", "stored_fp8_block", "fp8"])
def test_good_methods_pass(name: str, bench: Bench) -> None:
    """But for what one that quantizes while it loads can't be asked."""
    results = [Result.of(case) for case in cases("quantization", spec_of(bench, name), bench)]
    assert len(results) == 74
    assert [result for result in results if result.outcome == "failed"] == []
    skipped = {result.message for result in results if result.outcome == "skipped"}
    assert skipped == ({"quantizes what is plain"} if name == "fp8" else set())


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_a_broken_method_fails(defect: Defect, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    defect.plant(monkeypatch)
    broken = defect.change(spec_of(bench, defect.method))
    (result,) = [
        Result.of(case) for case in cases("quantization", broken, bench) if case.name.startswith(defect.killer)
    ]
    assert result.outcome == "failed", f"{defect.sentence}, and nobody notices: {result}"

"""The methods conform on all their examples."""

from __future__ import annotations

import pytest

from llmk.api import QuantizationSpec
from llmk_quantization.specs import llmk_quantization_methods
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases


@pytest.mark.slow
@pytest.mark.parametrize("spec", llmk_quantization_methods(), ids=lambda spec: spec.name)
def test_conforms(spec: QuantizationSpec) -> None:
    results = [Result.of(case) for case in cases("quantization", spec, Bench.open("cpu"))]
    assert [result for result in results if result.outcome == "failed"] == []
    assert len(results) >= 31
    skipped = [result for result in results if result.outcome == "skipped"]
    split = [result for result in skipped if result.message.endswith("can't be split between processes")]
    assert all(", ordered" in one.name and "two tensor parallel ranks are one" in one.name for one in split)
    others = [result.message for result in skipped if result not in split]
    assert others == ["quantizes what is plain"] * (2 if spec.online else 0)

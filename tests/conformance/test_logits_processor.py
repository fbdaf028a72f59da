"""The suite of logits processors passes a good one and finds each planted defect."""

from __future__ import annotations

import pytest
from defects import Defect
from defects.logits_processor import DEFECTS, Good
from killing import check_good, check_killed

from llmk.api import LogitsProcessorSpec
from llmk_testing.bench import Bench


def spec(provider: type) -> LogitsProcessorSpec:
    where = "defects.logits_processor"
    return LogitsProcessorSpec(
        id="x.y", implementation=f"{where}:{provider.__name__}", examples="defects.results:LOGITS"
    )


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("logits_processor", spec(Good), bench)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("logits_processor", spec(defect.provider), bench, defect.case)

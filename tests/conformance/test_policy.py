"""The suite of scheduling policies passes a good one and finds each planted defect."""

from __future__ import annotations

import pytest
from defects import Defect
from defects.policy import DEFECTS, Good
from killing import check_good, check_killed, failed

from llmk.api import PolicySpec
from llmk_testing.bench import Bench


def spec(provider: type) -> PolicySpec:
    where = f"defects.policy:{provider.__name__}"
    return PolicySpec(id="x.y", name="y", implementation=where, examples="defects.results:POLICY")


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("policy", spec(Good), bench)


def test_the_built_in_order_passes(bench: Bench) -> None:
    where = "llmk.engine.scheduling.fair_policy:FairPolicy"
    assert failed("policy", PolicySpec(id="x.y", name="y", implementation=where), bench) == {}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("policy", spec(defect.provider), bench, defect.case)

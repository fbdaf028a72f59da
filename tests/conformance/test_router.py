"""The suite of routers passes a good one and finds each planted defect."""

from __future__ import annotations

import pytest
from defects import Defect
from defects.router import DEFECTS, Good
from killing import check_good, check_killed, failed

from llmk.api import RouterSpec
from llmk_testing.bench import Bench


def spec(provider: type) -> RouterSpec:
    where = f"defects.router:{provider.__name__}"
    return RouterSpec(id="x.y", name="y", implementation=where, examples="defects.router:ROUTER")


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("router", spec(Good), bench)


def test_the_built_in_choice_passes(bench: Bench) -> None:
    where = "llmk.engine.routing.least_work:LeastWork"
    assert failed("router", RouterSpec(id="x.y", name="y", implementation=where), bench) == {}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("router", spec(defect.provider), bench, defect.case)

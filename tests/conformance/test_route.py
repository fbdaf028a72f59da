"""The suite of API routes passes a good one and finds each planted defect."""

from __future__ import annotations

from typing import Any

import pytest
from defects import Defect
from defects.route import DEFECTS, Ask
from killing import check_good, check_killed, results

from llmk.api import RouteSpec
from llmk_testing.bench import Bench


def spec(provider: Any = Ask, examples: str = "defects.route:EXAMPLES") -> RouteSpec:
    where = f"defects.route:{provider.__name__}"
    return RouteSpec(id="x.y", method="POST", path="/x", implementation=where, examples=examples)


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("route", spec(), bench)


def test_without_examples_it_is_skipped(bench: Bench) -> None:
    assert {one.outcome for one in results("route", spec(examples=""), bench)} == {"skipped"}


def test_bodies_alone_are_enough_for_most_cases(bench: Bench) -> None:
    found = results("route", spec(examples="defects.route:BODIES"), bench)
    assert {one.outcome for one in found} == {"passed", "skipped"}
    assert sum(one.outcome == "skipped" for one in found) == 2


def test_where_responses_are_compared_with_nothing_it_says_so(bench: Bench) -> None:
    found = results("route", spec(examples="defects.route:BODIES"), bench)
    (oracle,) = (one for one in found if one.name == "responses are those of the oracle")
    assert oracle.outcome == "skipped"
    assert oracle.message.startswith("responses are compared with nothing: the examples have no oracle")


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("route", spec(defect.provider), bench, defect.case)

"""The suite of parsers passes a good one and finds each planted defect."""

from __future__ import annotations

from typing import Any

import pytest
from defects import Defect
from defects.parser import DEFECTS, Good, claims
from killing import check_good, check_killed, results

from llmk.api import ParserSpec
from llmk_testing.bench import Bench


def spec(provider: Any = Good, **changes: Any) -> ParserSpec:
    if isinstance(provider, dict):
        provider, changes = Good, provider
    fields: dict[str, Any] = {"claims": claims, "examples": "defects.parser:EXAMPLES", **changes}
    return ParserSpec(id="x.y", name="y", implementation=f"defects.parser:{provider.__name__}", **fields)


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("tool_parser", spec(), bench)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("tool_parser", spec(defect.provider), bench, defect.case)


def test_without_examples_what_needs_them_says_so(bench: Bench) -> None:
    found = results("tool_parser", spec(examples=""), bench)
    assert {result.outcome for result in found} == {"passed", "skipped"}
    assert {result.message for result in found if result.outcome == "skipped"} == {
        "the spec names no examples: answers in its dialect"
    }


def test_examples_of_another_shape_are_named(bench: Bench) -> None:
    failed = [
        one for one in results("tool_parser", spec(examples="defects.parser:OPEN"), bench) if one.outcome == "failed"
    ]
    assert "expected a sequence of non-empty strings" in failed[0].message

"""The suite of grammar compilers passes a good one and finds each planted defect."""

from __future__ import annotations

from typing import Any

import pytest
from defects import Defect
from defects.grammar import DEFECTS, Good
from killing import check_good, check_killed, results

from llmk.api import GrammarSpec
from llmk_testing.bench import Bench


def spec(provider: type, **changes: Any) -> GrammarSpec:
    where = "defects.grammar"
    fields: dict[str, Any] = {"kinds": ("regex", "choice", "json"), "examples": f"{where}:EXAMPLES", **changes}
    return GrammarSpec(id="x.y", name="y", implementation=f"{where}:{provider.__name__}", **fields)


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("grammar", spec(Good), bench)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("grammar", spec(defect.provider), bench, defect.case)


def test_examples_of_another_shape_are_named(bench: Bench) -> None:
    for examples, what in (("defects.grammar:DEFECTS", "expected a sequence of mappings"), ("", "names no examples")):
        found = results("grammar", spec(Good, examples=examples), bench)
        assert all(what in result.message for result in found), found
    one = spec(Good, examples="defects.grammar:EXAMPLES", kinds=("regex",))
    assert not [result for result in results("grammar", one, bench) if result.outcome == "failed"]

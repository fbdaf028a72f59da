"""The suite of IO processors passes a good one and finds each planted defect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from defects import Defect
from defects.io_processor import DEFECTS, Sums, SumsRequest
from killing import check_good, check_killed, results

from llmk.api import IOProcessorSpec, IOPrompt
from llmk_testing.bench import Bench
from llmk_testing.io_prompts import check_prompts


def spec(provider: Any = Sums, examples: str = "EXAMPLES", **changes: Any) -> IOProcessorSpec:
    if isinstance(provider, dict):
        return spec(**provider)
    where = "defects.io_processor"
    named = {"implementation": f"{where}:{provider.__name__}", "examples": examples and f"{where}:{examples}"}
    return IOProcessorSpec(id="x.y", name="y", **named, **changes)


def test_a_good_one_passes(bench: Bench) -> None:
    good = replace(spec(), examples="defects.results:IO")
    check_good("io_processor", good, bench)


def test_without_examples_the_rest_is_skipped(bench: Bench) -> None:
    assert [one.outcome for one in results("io_processor", spec(examples=""), bench)] == ["passed", *["skipped"] * 13]


@pytest.mark.parametrize("param", ["texts", "texts[1]", "texts.1", "texts.list[str].1"])
def test_a_path_from_a_field_of_the_body_is_right(param: str) -> None:
    body = {"texts": ["a", "b"]}
    check_prompts(SumsRequest([IOPrompt(prompt="b", returns="text", param=param)]), body)


@pytest.mark.parametrize("param", ["text", "texts[0]", "texts.0", "texts.2", "1"])
def test_a_path_to_another_text_or_to_none_is_wrong(param: str) -> None:
    body = {"texts": ["a", "b"]}
    with pytest.raises(AssertionError, match="is said to be from"):
        check_prompts(SumsRequest([IOPrompt(prompt="b", returns="text", param=param)]), body)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("io_processor", spec(defect.provider), bench, defect.case)

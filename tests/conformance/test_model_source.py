"""The suite of sources of models passes a good one and finds each planted defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from defects import Defect
from defects.model_source import DEFECTS, Good, claims
from killing import check_good, failed

from llmk.api import ModelSourceSpec
from llmk.config import load
from llmk.kernel.registry import Registry
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

OPTIONS = """
from defects.model_source import Options
from llmk.api import hookimpl

@hookimpl
def llmk_config_schema():
    return Options
"""


@pytest.fixture
def shelf(bench: Bench, site: Callable[..., str]) -> Bench:
    """A bench with a plugin that has the options."""
    site("shelf", OPTIONS)
    return replace(bench, registry=Registry.discover(load(environ={}).config.plugins))


def spec(provider: type = Good) -> ModelSourceSpec:
    where = "defects.model_source"
    named = {"implementation": f"{where}:{provider.__name__}", "examples": f"{where}:filled"}
    return ModelSourceSpec(id="shelf.y", name="y", claims=claims, **named)


def test_a_good_one_passes(shelf: Bench) -> None:
    check_good("model_source", spec(), shelf)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, shelf: Bench) -> None:
    broken = spec(defect.provider) if isinstance(defect.provider, type) else replace(spec(), **defect.provider)
    chosen = [Result.of(case) for case in cases("model_source", broken, shelf) if defect.case in case.name]
    assert [result.outcome for result in chosen] == ["failed"], chosen


def test_without_examples_only_names_and_options_are_tried(shelf: Bench) -> None:
    found = [Result.of(case) for case in cases("model_source", replace(spec(), examples=""), shelf)]
    assert {result.outcome for result in found} == {"passed", "skipped"}
    assert not failed("model_source", replace(spec(), examples=""), shelf)

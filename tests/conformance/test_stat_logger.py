"""The suite of stat loggers passes a good one and finds each planted defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from defects import Defect
from defects.stat_logger import DEFECTS, OUTAGES, Good, Links, Posts
from killing import check_good, failed, results

from llmk.api import StatLoggerSpec
from llmk.config import load
from llmk.kernel.registry import Registry
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

Made = Callable[[str, str], Bench]

OPTIONS = """
from defects.stat_logger import {schema}
from llmk.api import hookimpl

@hookimpl
def llmk_config_schema():
    return {schema}
"""


@pytest.fixture
def made(bench: Bench, site: Callable[..., str]) -> Made:
    """Makes a bench with a plugin that has one of the schemas."""

    def make(name: str, schema: str) -> Bench:
        site(name, OPTIONS.format(schema=schema))
        return replace(bench, registry=Registry.discover(load(environ={}).config.plugins))

    return make


def spec(provider: type[Good], plugin: str = "lines", examples: str | None = None) -> StatLoggerSpec:
    where, examples = "defects.stat_logger", provider.examples if examples is None else examples
    named = {"implementation": f"{where}:{provider.__name__}", "examples": examples and f"{where}:{examples}"}
    return StatLoggerSpec(id=f"{plugin}.y", name="y", **named)


@pytest.mark.slow
@pytest.mark.parametrize("provider", [Posts, Links])
def test_a_good_one_passes(provider: type[Good], made: Made) -> None:
    check_good("stat_logger", spec(provider), made("lines", "Options"))


@pytest.mark.slow
def test_one_that_sends_nothing_is_not_tried_with_a_server(made: Made) -> None:
    found = results("stat_logger", spec(Good), made("lines", "Options"))
    assert [result.name for result in found if result.outcome != "passed"] == [OUTAGES]


@pytest.mark.slow
def test_without_an_oracle_its_files_are_not_read(made: Made) -> None:
    found = results("stat_logger", spec(Good, examples=""), made("lines", "Options"))
    assert [result.name for result in found if result.outcome != "passed"] == [
        "its files are those of its oracle",
        OUTAGES,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, made: Made) -> None:
    found = cases("stat_logger", spec(defect.provider), made("lines", "Options"))
    chosen = [Result.of(case) for case in found if case.name.endswith(defect.case)]
    assert [result.outcome for result in chosen] == ["failed"], chosen


@pytest.mark.slow
def test_a_schema_that_drops_what_it_does_not_know_is_found(made: Made) -> None:
    found = failed("stat_logger", spec(Good, "lax"), made("lax", "Lax"))
    assert list(found) == ["an option that there isn't is refused by name"]

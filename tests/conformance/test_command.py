"""The suite of commands passes a good one and finds each planted defect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from defects import Defect
from defects.command import DEFECTS, Good
from killing import check_good, results

from llmk.api import CommandSpec
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

Site = Callable[..., str]

SPECS = """
from llmk.api import CommandSpec, hookimpl

@hookimpl
def llmk_commands():
    return [CommandSpec(id="sums.add", name="add-up", implementation="defects.command:{0}", summary="add numbers up")]
"""


def spec(provider: type, site: Site, examples: str = "defects.command:EXAMPLES") -> CommandSpec:
    site("sums", SPECS.format(provider.__name__))
    where = f"{provider.__module__}:{provider.__name__}"
    given = {"implementation": where, "examples": examples, "summary": "add numbers up"}
    return CommandSpec(id="sums.add", name="add-up", **given)


@pytest.mark.slow
def test_a_good_one_passes(bench: Bench, site: Site) -> None:
    check_good("command", spec(Good, site), bench)


@pytest.mark.slow
def test_without_examples_it_is_not_run(bench: Bench, site: Site) -> None:
    found = results("command", spec(Good, site, examples=""), bench)
    assert [result.outcome for result in found] == ["passed"] * 6 + ["skipped"] * 9, found


@pytest.mark.slow
def test_what_examples_lack_is_said(bench: Bench, site: Site) -> None:
    chosen = [
        each for each in cases("command", spec(Good, site, "defects.command:FEW"), bench) if "have each" in each.name
    ]
    (found,) = map(Result.of, chosen)
    assert found.outcome == "skipped"
    assert found.message.endswith("has it: --share, an exit code other than 0, a file of 128 KiB")


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench, site: Site) -> None:
    found = cases("command", spec(defect.provider, site), bench)
    chosen = [Result.of(case) for case in found if defect.case in case.name]
    assert [result.outcome for result in chosen] == ["failed"], chosen

"""The suite of platforms passes a good one and fails each that is broken on purpose."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llmk.api import PlatformSpec, platform
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

sys.path.insert(0, str(Path(__file__).parent))
from defects.platform import DEFECTS, GRAPHS, Counting, Defect, Rerun, with_facet

ABSENT = {
    "the platform has no graphs facet",
    "the platform has no compiling facet",
    "RankRules.visible names no variable",
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.open("cpu")


@pytest.fixture
def good(bench: Bench) -> PlatformSpec:
    return next(each.spec for each in bench.registry.platforms if each.spec.id == "cpu.cpu")


@pytest.mark.slow
def test_a_good_platform_passes(good: PlatformSpec, bench: Bench) -> None:
    results = [Result.of(case) for case in cases("platform", good, bench)]
    assert len(results) == 40
    assert [result for result in results if result.outcome == "failed"] == []
    assert {result.message for result in results if result.outcome == "skipped"} <= ABSENT


def test_a_platform_with_early_setup(good: PlatformSpec, bench: Bench) -> None:
    spec = replace(good, early_setup="time:sleep")
    (result,) = [Result.of(case) for case in cases("platform", spec, bench) if "early setup" in case.name]
    assert result.outcome == "passed", result


@pytest.mark.slow
def test_a_platform_with_an_all_reduce_of_its_own(good: PlatformSpec, bench: Bench) -> None:
    spec = replace(good, implementation="defects.platform:GatheringPlatform")
    (result,) = [Result.of(case) for case in cases("platform", spec, bench) if case.name == "two ranks are joined"]
    assert result.outcome == "passed", result


def test_facets_that_the_processor_lacks(good: PlatformSpec, bench: Bench) -> None:
    """Graphs that run again, and memory that is counted."""
    counted = with_facet(bench, "graphs", Rerun(), features=bench.facts.features | GRAPHS)
    counted.platform.memory = Counting()
    wanted = ("graphs", "what graphs hold", "a replay", "measure", "facets")
    results = [Result.of(case) for case in cases("platform", good, counted) if case.name.startswith(wanted)]
    assert [(result.name, result.message) for result in results if result.outcome != "passed"] == []
    assert len(results) == 9


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_a_broken_platform_fails(defect: Defect, good: PlatformSpec, bench: Bench) -> None:
    spec, on = defect.change(good, bench)
    (result,) = [Result.of(case) for case in cases("platform", spec, on) if case.name.startswith(defect.killer)]
    assert result.outcome == "failed", f"{defect.sentence}, and nobody notices: {result}"


def test_the_contract_is_small() -> None:
    """At most 20 members, facets included."""
    facets = [platform.Platform, platform.Device, platform.Memory, platform.Graphs]
    facets += [platform.Compiling, platform.Collectives]
    members = [name for facet in facets for name in (*vars(facet), *vars(facet).get("__annotations__", {}))]
    assert len([name for name in members if not name.startswith("_")]) <= 20

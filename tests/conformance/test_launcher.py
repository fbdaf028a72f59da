"""The suite of launchers passes good ones and finds each planted defect."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from defects import Defect
from defects.launcher import DEFECTS, Good, Local, LosesLater
from killing import check_good, results

from llmk.api import LauncherSpec, Verdict, no
from llmk.engine.processes.ranks.local_launcher import LocalLauncher
from llmk_testing import launched
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases, launcher

ANSWERS = count()
CAN_T = Verdict(False)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launched, launcher):
        monkeypatch.setattr(module, "PATIENCE", 5.0)
    monkeypatch.setattr(launcher, "QUIET", 0.3)


def spec(provider: type, **changes: Any) -> LauncherSpec:
    where = f"{provider.__module__}:{provider.__name__}"
    return LauncherSpec(id="odd.launcher", name="odd", implementation=where, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("provider", [Good, Local, LocalLauncher])
def test_good_ones_pass(provider: type, bench: Bench) -> None:
    check_good("launcher", spec(provider), bench)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    chosen = [case for case in cases("launcher", spec(defect.provider), bench) if defect.case in case.name]
    assert [Result.of(case).outcome for case in chosen] == ["failed"]


@pytest.mark.slow
def test_places_that_are_lost_are_not_taken_for_places_that_never_were(bench: Bench) -> None:
    LosesLater.given = 0
    found = results("launcher", spec(LosesLater), bench)
    assert [result.outcome for result in found[:5]] == ["passed"] * 4 + ["failed"]
    assert "were before" in found[4].message


@pytest.mark.parametrize(
    "supports",
    [lambda query: True, lambda query: CAN_T, lambda query: no("x", found=next(ANSWERS)), lambda query: query.nodes],
    ids=["no verdict", "no reason", "changes", "raises"],
)
def test_answers_that_are_none(supports: Any, bench: Bench) -> None:
    found = results("launcher", spec(Good, supports=supports), bench)
    assert (found[0].outcome, found[0].name[:23]) == ("failed", "says what it can start,")

"""The suites of speculators pass good ones and find each planted defect."""

from __future__ import annotations

from typing import Any

import pytest
from defects import Defect, head_speculator
from defects.speculator import DEFECTS, DEVICE_DEFECTS, Good, GoodOnDevice
from killing import check_good, check_killed, failed, results

from llmk.api import OK, Checkpoint, SpeculatorSpec, Verdict, no
from llmk_testing.bench import Bench


def spec(provider: type, *, on_device: bool = False, heads: bool = False, **changes: Any) -> SpeculatorSpec:
    examples = "" if heads else f"defects.speculator:{'DEVICE_' if on_device else ''}EXAMPLES"
    how: dict[str, Any] = {"on_device": on_device, "heads": heads, "examples": examples, **changes}
    return SpeculatorSpec(id="x.y", name="y", implementation=f"{provider.__module__}:{provider.__name__}", **how)


def test_good_ones_pass(bench: Bench) -> None:
    check_good("speculator", spec(Good), bench)
    check_good("speculator", spec(GoodOnDevice, on_device=True), bench)
    check_good("speculator", spec(head_speculator.Good, heads=True), bench)


def test_examples_that_are_not_options_fail_with_their_name(bench: Bench) -> None:
    found = failed("speculator", spec(Good, examples="defects.speculator:APART"), bench)
    assert "expected a sequence of options" in next(iter(found.values()))


def test_without_an_oracle_one_case_is_skipped(bench: Bench) -> None:
    for on_device, provider in ((False, Good), (True, GoodOnDevice)):
        found = results("speculator", spec(provider, on_device=on_device, examples=""), bench)
        assert [result.name for result in found if result.outcome != "passed"] == ["its drafts are those of its oracle"]


def test_supports_that_raises_fails(bench: Bench) -> None:
    def supports(checkpoint: Checkpoint) -> Verdict:
        return OK if checkpoint.config["vocab_size"] else no("vocabulary", "none")

    found = failed("speculator", spec(Good, supports=supports), bench)
    assert list(found) == ["it says which checkpoints it serves, for any"]


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("speculator", spec(defect.provider), bench, defect.case)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEVICE_DEFECTS, ids=str)
def test_killed_on_the_device(defect: Defect, bench: Bench) -> None:
    check_killed("speculator", spec(defect.provider, on_device=True), bench, defect.case)


@pytest.mark.slow
@pytest.mark.parametrize("defect", head_speculator.DEFECTS, ids=str)
def test_killed_by_heads(defect: Defect, bench: Bench) -> None:
    check_killed("speculator", spec(defect.provider, heads=True), bench, defect.case)

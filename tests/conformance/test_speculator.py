"""The suites of speculators pass good ones and find each planted defect."""

from __future__ import annotations

import pytest
from defects import Defect
from defects.speculator import DEFECTS, DEVICE_DEFECTS, Good, GoodOnDevice
from killing import check_good, check_killed, failed

from llmk.api import SpeculatorSpec
from llmk_testing.bench import Bench


def spec(provider: type, *, on_device: bool = False, examples: str = "") -> SpeculatorSpec:
    where = f"defects.speculator:{provider.__name__}"
    return SpeculatorSpec(id="x.y", name="y", implementation=where, on_device=on_device, examples=examples)


def test_good_ones_pass(bench: Bench) -> None:
    check_good("speculator", spec(Good), bench)
    check_good("speculator", spec(GoodOnDevice, on_device=True), bench)


def test_examples_that_are_not_options_fail_with_their_name(bench: Bench) -> None:
    found = failed("speculator", spec(Good, examples="defects.speculator:APART"), bench)
    assert "expected a sequence of options" in next(iter(found.values()))


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("speculator", spec(defect.provider), bench, defect.case)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEVICE_DEFECTS, ids=str)
def test_killed_on_the_device(defect: Defect, bench: Bench) -> None:
    check_killed("speculator", spec(defect.provider, on_device=True), bench, defect.case)

"""The suite of mixtures of experts passes good ones and finds each planted defect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from defects import Defect
from defects.moe import DEFECTS, LIMITED, NARROW, OTHER, OWN
from killing import check_good, failed, results
from trying import check_found, check_passes, registered

from llmk_testing.bench import Bench


@pytest.mark.parametrize(
    "id", ["reference.fused_moe", "reference.fused_moe_invariant", "reference.fused_moe_fp8_block"]
)
def test_good_ones_pass(id: str, bench: Bench) -> None:
    check_passes(id, bench)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_found(defect: Defect, bench: Bench) -> None:
    check_found("reference.fused_moe", defect, bench)


@pytest.mark.parametrize("fields", [NARROW, OWN, OTHER], ids=["narrow", "own activation", "own scoring and facts"])
def test_good_ones_that_declare_little_pass(fields: dict[str, Any], bench: Bench) -> None:
    spec = replace(registered("reference.fused_moe", bench), id="planted.good", **fields)
    check_good("moe", spec, bench)
    agree = [result.name for result in results("moe", spec, bench) if result.name.startswith("agrees")]
    assert len(agree) >= 4, "several mixtures that it declares are tried"


@pytest.mark.parametrize("defect", LIMITED, ids=str)
def test_found_in_those_that_declare_little(defect: Defect, bench: Bench) -> None:
    check_found("reference.fused_moe", defect, bench)


def test_one_that_serves_nothing_that_is_known_is_told_what_to_do_on_one_screen(bench: Bench) -> None:
    spec = replace(registered("reference.fused_moe", bench), id="planted.good", **{**OWN, "examples": ""})
    (message,) = failed("moe", spec, bench).values()
    assert "activation: wanted silu, found clipped" in message
    assert "KernelSpec.examples names an llmk.reference.moe.MoEExamples" in message
    assert len(message.splitlines()) <= 15

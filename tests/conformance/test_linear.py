"""The suite of linear kernels passes good ones and finds each planted defect."""

from __future__ import annotations

import pytest
from defects import Defect
from defects.linear import DEFECTS
from trying import check_found, check_passes

from llmk_testing.bench import Bench

GOOD = ("reference.linear", "reference.linear_invariant", "reference.linear_int4_group", "reference.linear_fp8_block")


@pytest.mark.parametrize("id", GOOD)
def test_good_ones_pass(id: str, bench: Bench) -> None:
    check_passes(id, bench)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_found(defect: Defect, bench: Bench) -> None:
    check_found("reference.linear", defect, bench)

"""The suite of mixtures of experts passes good ones and finds each planted defect."""

from __future__ import annotations

import pytest
from defects import Defect
from defects.moe import DEFECTS
from trying import check_found, check_passes

from llmk.testing.bench import Bench


@pytest.mark.parametrize(
    "id", ["reference.fused_moe", "reference.fused_moe_invariant", "reference.fused_moe_fp8_block"]
)
def test_good_ones_pass(id: str, bench: Bench) -> None:
    check_passes(id, bench)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_found(defect: Defect, bench: Bench) -> None:
    check_found("reference.fused_moe", defect, bench)

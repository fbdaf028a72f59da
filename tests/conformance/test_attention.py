"""The suite of attention backends passes good ones and finds each planted defect."""

from __future__ import annotations

import pytest
from defects import Defect
from defects.attention import DEFECTS
from trying import check_found, check_passes

from llmk_testing.bench import Bench


@pytest.mark.parametrize("id", ["reference.attention", "reference.attention_invariant"])
def test_good_ones_pass(id: str, bench: Bench) -> None:
    check_passes(id, bench)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_found(defect: Defect, bench: Bench) -> None:
    check_found("reference.attention", defect, bench)

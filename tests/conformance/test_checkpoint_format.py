"""The suite of formats of checkpoints passes a good one and finds each planted defect."""

from __future__ import annotations

from typing import Any

import pytest
from defects import Defect
from defects.checkpoint_format import DEFECTS, Good
from killing import check_good, check_killed

from llmk.api import CheckpointFormatSpec
from llmk_testing.bench import Bench


def spec(provider: Any) -> CheckpointFormatSpec:
    where = f"defects.checkpoint_format:{provider.__name__}.read"
    examples = "defects.checkpoint_format:EXAMPLE"
    return CheckpointFormatSpec(
        id="x.acme", name="acme", claims=provider.claims, implementation=where, examples=examples
    )


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("checkpoint_format", spec(Good), bench)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_killed(defect: Defect, bench: Bench) -> None:
    check_killed("checkpoint_format", spec(defect.provider), bench, defect.case)

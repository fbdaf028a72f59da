"""The suite of ops passes good ones and finds each planted defect."""

from __future__ import annotations

from dataclasses import replace

import pytest
from defects import Defect
from defects.op import DEFECTS
from killing import check_good, results
from trying import check_found, check_passes, registered

from llmk.api import KernelSpec
from llmk.reference.contracts import CONTRACTS
from llmk.reference.specs import llmk_ops
from llmk_testing.bench import Bench

GOOD = sorted(spec.id for spec in llmk_ops() if isinstance(spec, KernelSpec))


@pytest.mark.slow
@pytest.mark.parametrize("id", GOOD)
def test_good_ones_pass(id: str, bench: Bench) -> None:
    check_passes(id, bench)


@pytest.mark.parametrize("op", sorted(CONTRACTS))
def test_contracts_are_true(op: str, bench: Bench) -> None:
    check_good("op_contract", CONTRACTS[op], bench)


@pytest.mark.parametrize(("op", "defect"), DEFECTS, ids=[f"{op} {defect}" for op, defect in DEFECTS])
def test_found(op: str, defect: Defect, bench: Bench) -> None:
    check_found(f"reference.{op}", defect, bench)


def test_an_op_of_somebody_elses_is_skipped_with_a_reason(bench: Bench) -> None:
    good = registered("reference.rms_norm", bench)
    spec: KernelSpec = replace(good, id="planted.own", op="planted_op")
    (result,) = results("op", spec, bench)
    assert result.outcome == "skipped"
    assert "planted_op" in result.message

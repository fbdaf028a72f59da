"""The suite of executors passes good ones and finds each planted defect."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from killing import check_good, check_killed

from llmk.api import ExecutorSpec, KernelSpec, Tier, Verdict, no
from llmk_testing.bench import Bench

ANSWERS = count()
CAN_T = Verdict(False)


def kernel(id: str, kind: str) -> KernelSpec:
    op = "rope" if kind == "op" else ""
    return KernelSpec(id=id, kind=kind, op=op, implementation="nowhere:it", tier=Tier.PORTABLE)


def executor(**changes: Any) -> ExecutorSpec:
    own = {"supports": lambda query: no("tree"), "kernels": (kernel("odd.one", "moe"), kernel("odd.two", "linear"))}
    return ExecutorSpec(id="odd.executor", name="odd", implementation="nowhere:Executor", **{**own, **changes})


def test_a_good_one_passes(bench: Bench) -> None:
    check_good("executor", executor(), bench)


@pytest.mark.parametrize(
    ("changes", "case"),
    [
        ({"supports": lambda query: True}, "says what it can run"),
        ({"supports": lambda query: CAN_T}, "says what it can run"),
        ({"supports": lambda query: no("tree", found=next(ANSWERS))}, "says what it can run"),
        ({"supports": lambda query: query.tree.layers}, "says what it can run"),
        ({"kernels": (kernel("odd.one", "op"),)}, "its kernels are for sites"),
        ({"kernels": (kernel("other.one", "moe"),)}, "its kernels are for sites"),
        ({"kernels": (kernel("odd.one", "moe"), kernel("odd.one", "linear"))}, "its kernels are for sites"),
    ],
    ids=["no verdict", "no reason", "changes", "raises", "other kind", "other's id", "same id"],
)
def test_killed(changes: dict[str, Any], case: str, bench: Bench) -> None:
    check_killed("executor", executor(**changes), bench, case)

"""The suite of executors passes good ones and finds each planted defect."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from defects import Defect
from killing import check_killed, results

from llmk.api import ExecutorSpec, KernelSpec, Tier, Verdict, no
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

sys.path.append(str(Path(__file__).parent.parent / "third_party/fjord/src"))

from defects.executor import DEFECTS, Good
from llmk_fjord.gannet_supports import executor_supports

ANSWERS = count()
CAN_T = Verdict(False)
SPECS = """
from llmk.api import ExecutorSpec, hookimpl
from llmk_fjord.gannet_supports import executor_supports

@hookimpl
def llmk_executors():
    knows = frozenset({{"top_k", "top_p", "min_p"}})
    where = "defects.executor:{0}"
    return [ExecutorSpec(id="{1}.plain", name="plain", implementation=where, supports=executor_supports, knows=knows)]
"""


def kernel(id: str, kind: str) -> KernelSpec:
    op = "rope" if kind == "op" else ""
    return KernelSpec(id=id, kind=kind, op=op, implementation="nowhere:it", tier=Tier.PORTABLE)


def executor(**changes: Any) -> ExecutorSpec:
    own = {"supports": lambda query: no("tree"), "kernels": (kernel("odd.one", "moe"), kernel("odd.two", "linear"))}
    return ExecutorSpec(id="odd.executor", name="odd", implementation="nowhere:Executor", **{**own, **changes})


def test_one_that_runs_nothing_here_is_skipped_in_words(bench: Bench) -> None:
    found = results("executor", executor(), bench)
    assert [result.outcome for result in found[:2]] == ["passed"] * 2
    assert {(result.outcome, result.message.rpartition(": ")[2]) for result in found[2:]} == {("skipped", "tree")}


def served(provider: type, site: Callable[..., str]) -> ExecutorSpec:
    name = provider.__name__.lower()  # a module of its own, since one that is imported stays
    site(name, SPECS.format(provider.__name__, name))
    knows = frozenset({"top_k", "top_p", "min_p"})
    where = f"{provider.__module__}:{provider.__name__}"
    return ExecutorSpec(id=f"{name}.plain", name="plain", implementation=where, supports=executor_supports, knows=knows)


@pytest.mark.slow
def test_a_good_one_passes(bench: Bench, site: Callable[..., str]) -> None:
    found = [result for result in results("executor", served(Good, site), bench) if result.outcome != "passed"]
    assert all(result.outcome == "skipped" and "found MoE" in result.message for result in found), found
    assert len(found) == 3


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_mistake_in_steps_is_found(defect: Defect, bench: Bench, site: Callable[..., str]) -> None:
    chosen = [case for case in cases("executor", served(defect.provider, site), bench) if defect.case in case.name]
    assert chosen, f"{defect.case!r} is no case"
    found = (Result.of(case) for case in chosen)
    assert any(result.outcome == "failed" for result in found)


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

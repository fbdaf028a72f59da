"""Which scheduling policy is chosen, and how the plan shows it."""

from __future__ import annotations

from typing import Any

import pytest
from wheelhouse import Wheelhouse

from llmk.api import Choice, Reason, SelectionError
from llmk.config import load
from llmk.kernel.policies import choose_policy

CODE = """
@hookimpl
def llmk_scheduling_policies():
    return [PolicySpec(id="{name}.policy", name="{spoken}", implementation="plug_{name}:Policy")]
"""


def choose(house: Wheelhouse, excluded: dict[str, Reason] | None = None, **rules: Any) -> Choice:
    config = load({f"select.policy.{key}": value for key, value in rules.items()}, environ={}).config
    return choose_policy(house.discover(), config, excluded or {})


@pytest.mark.hook("llmk_scheduling_policies")
def test_a_policy_is_used_only_where_it_is_named(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("acme", CODE.format(name="acme", spoken="fair"))
    choice = choose(wheelhouse)
    assert (choice.kind, choice.site, choice.id) == ("policy", "scheduler", "policies.priority")
    assert {r.id for r in choice.rejected} == {"policies.fcfs", "policies.fair", "acme.policy"}
    named = choose(wheelhouse, use="acme.policy")
    assert (named.id, named.pieces[0].distribution) == ("acme.policy", "acme-wheel")
    assert named.pieces[0].why == "pinned by [select.policy] use"
    assert choose(wheelhouse, use="fcfs").id == "policies.fcfs"
    with pytest.raises(SelectionError, match=r"policies\.fair .* and acme\.policy .* tie"):
        choose(wheelhouse, use="fair")


def test_a_policy_that_is_missing_or_broken_is_an_error(wheelhouse: Wheelhouse) -> None:
    with pytest.raises(SelectionError, match=r"\[select\.policy\] names 'far'"):
        choose(wheelhouse, use="far")
    broken = {"policies.priority": Reason("import_failed", found="no module")}
    with pytest.raises(SelectionError, match=r"policies\.priority of llmk-core .* can't be used"):
        choose(wheelhouse, broken)
    with pytest.raises(SelectionError, match="no scheduling policy is left"):
        choose(wheelhouse, use="", avoid="policies.fcfs,policies.priority,policies.fair")

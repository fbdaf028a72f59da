"""Which scheduling policy is chosen, and how the plan shows it."""

from __future__ import annotations

from typing import Any

import pytest
from wheelhouse import Wheelhouse

from llmk.api import Choice, Reason, SelectionError
from llmk.config import load
from llmk.planning.choices.policies import choose_policy

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
    assert (choice.kind, choice.site, choice.id) == ("policy", "scheduler", "core.built_in")
    assert (choice.pieces[0].distribution, {r.id for r in choice.rejected}) == ("llmk-core", {"acme.policy"})
    assert choice.pieces[0].why.startswith("built in")
    named = choose(wheelhouse, use="acme.policy")
    assert (named.id, named.pieces[0].distribution) == ("acme.policy", "acme-wheel")
    assert named.pieces[0].why == "pinned by [select.policy] use"
    assert choose(wheelhouse, use="fair").id == "acme.policy"
    assert choose(wheelhouse, prefer="acme.policy").id == "acme.policy"
    wheelhouse.install("other", CODE.format(name="other", spoken="fair"))
    with pytest.raises(SelectionError, match=r"acme\.policy .* and other\.policy .* tie"):
        choose(wheelhouse, use="fair")


def test_a_policy_that_is_missing_or_broken_is_an_error_where_it_is_pinned(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("acme", CODE.format(name="acme", spoken="near"))
    with pytest.raises(SelectionError, match=r"\[select\.policy\] names 'far'"):
        choose(wheelhouse, use="far")
    broken = {"acme.policy": Reason("import_failed", found="no module")}
    with pytest.raises(SelectionError, match=r"near is pinned by \[select\.policy\] use, but can't serve"):
        choose(wheelhouse, broken, use="near")
    assert choose(wheelhouse, broken, prefer="acme.policy").id == "core.built_in"

"""What compiles the grammars of requests, and why."""

from __future__ import annotations

from typing import Any

import pytest
from wheelhouse import Wheelhouse

from llmk.api import SelectionError
from llmk.config import load
from llmk.planning.choices.grammars import choose_grammar

CODE = """
from llmk.api import GrammarSpec

@hookimpl
def llmk_grammars():
    where = "a:b"
    return [GrammarSpec(
        id="{name}.grammar", name="{name}-style", implementation=where, kinds=("regex",), score={score}
    )]
"""


def install(house: Wheelhouse, name: str, score: int = 0) -> None:
    house.install(name, CODE.format(name=name, score=score))


def chosen(house: Wheelhouse, **rules: Any) -> tuple[str | None, str]:
    config = load({f"select.grammar.{key}": value for key, value in rules.items()}, environ={}).config
    found, why = choose_grammar(house.discover(), config)
    return found.spec.id if found else None, why


@pytest.mark.hook("llmk_grammars")
def test_the_one_with_the_highest_score(wheelhouse: Wheelhouse) -> None:
    assert chosen(wheelhouse) == (None, "no installed wheel compiles grammars")
    install(wheelhouse, "alpha")
    assert chosen(wheelhouse) == ("alpha.grammar", "only candidate")
    install(wheelhouse, "beta", score=2)
    assert chosen(wheelhouse) == ("beta.grammar", "score 2")
    install(wheelhouse, "gamma", score=2)
    with pytest.raises(SelectionError, match=r"beta\.grammar .* and gamma\.grammar .* tie"):
        chosen(wheelhouse)


def test_the_user_decides_by_id_or_name_and_may_switch_it_off(wheelhouse: Wheelhouse) -> None:
    install(wheelhouse, "alpha")
    install(wheelhouse, "beta", score=2)
    for name in ("alpha.grammar", "alpha-style"):
        assert chosen(wheelhouse, use=name) == ("alpha.grammar", "pinned by [select.grammar] use")
    assert chosen(wheelhouse, prefer="alpha.grammar") == ("alpha.grammar", "preferred by [select.grammar] prefer")
    assert chosen(wheelhouse, avoid="beta.grammar")[0] == "alpha.grammar"
    assert chosen(wheelhouse, use="none") == (None, "off by [select.grammar] use")
    with pytest.raises(SelectionError, match=r"\[select\.grammar\] names 'alfa'"):
        chosen(wheelhouse, use="alfa")

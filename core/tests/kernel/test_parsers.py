"""Which parser a checkpoint's text is read with, and why."""

from __future__ import annotations

from typing import Any

import pytest
from wheelhouse import Wheelhouse

from llmk.api import Checkpoint, SelectionError
from llmk.config import load
from llmk.planning.choices.parsers import choose_parser

CODE = """
def never(query):
    return no("dialect", wanted="{name}")

@hookimpl
def llmk_tool_parsers():
    return [ParserSpec(
        id="{name}.tools", name="{name}-style", implementation="a:b", score={score},
        claims=lambda query: {claims},
    )]
"""


def install(house: Wheelhouse, name: str, *, score: int = 0, claims: str = "OK") -> None:
    house.install(name, CODE.format(name=name, score=score, claims=claims))


def chosen(house: Wheelhouse, checkpoint: Checkpoint, **rules: Any) -> tuple[str | None, str]:
    config = load({f"select.tool_parser.{key}": value for key, value in rules.items()}, environ={}).config
    found, why = choose_parser(house.discover(), "tool", config, checkpoint)
    return found.spec.id if found else None, why


@pytest.mark.hook("llmk_tool_parsers")
def test_the_one_that_claims_the_dialect(wheelhouse: Wheelhouse, checkpoint: Checkpoint) -> None:
    install(wheelhouse, "alpha", claims="never(query)")
    assert chosen(wheelhouse, checkpoint) == (
        None, "no tool parser claims this checkpoint's dialect (installed: alpha-style)",
    )  # fmt: skip
    install(wheelhouse, "beta", claims="1 / 0")
    install(wheelhouse, "gamma")
    assert chosen(wheelhouse, checkpoint) == ("gamma.tools", "claims it")


def test_the_user_decides_by_id_or_name_and_may_switch_it_off(wheelhouse: Wheelhouse, checkpoint: Checkpoint) -> None:
    install(wheelhouse, "alpha", claims="never(query)")
    install(wheelhouse, "gamma")
    for name in ("alpha.tools", "alpha-style"):
        assert chosen(wheelhouse, checkpoint, use=name) == ("alpha.tools", "pinned by [select.tool_parser] use")
    assert chosen(wheelhouse, checkpoint, use="none") == (None, "off by [select.tool_parser] use")
    assert chosen(wheelhouse, checkpoint, avoid="gamma.tools")[0] is None
    with pytest.raises(SelectionError, match=r"\[select\.tool_parser\] names 'alfa-style'"):
        chosen(wheelhouse, checkpoint, use="alfa-style")


def test_several_that_claim(wheelhouse: Wheelhouse, checkpoint: Checkpoint) -> None:
    install(wheelhouse, "alpha")
    install(wheelhouse, "gamma")
    with pytest.raises(SelectionError, match=r"alpha\.tools of alpha-wheel 1\.0 and gamma\.tools of gamma-wheel"):
        chosen(wheelhouse, checkpoint)
    assert chosen(wheelhouse, checkpoint, prefer="gamma.tools") == (
        "gamma.tools", "preferred by [select.tool_parser] prefer",
    )  # fmt: skip
    install(wheelhouse, "delta", score=5)
    assert chosen(wheelhouse, checkpoint)[0] == "delta.tools"

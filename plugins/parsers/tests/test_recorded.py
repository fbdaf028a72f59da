"""Recorded results of another engine's parsers (``cases/``), judged as the README there says.

``disagreements/`` names, one file for each parser, the cases where the recorded result is wrong for users; the table in
the package's README says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dialects import SPECS, Chain, make

from llmk.api import ParserContext
from llmk_testing.parsers import check_chunking, parse

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = [
    json.loads(line) for path in sorted((HERE / "cases").glob("*.jsonl")) for line in path.open()
]
DISAGREED = {line for path in (HERE / "disagreements").glob("*.txt") for line in path.read_text().split("\n") if line}


def parsers_of(case: dict[str, Any]) -> list[str]:
    """The specs that read the case, first reasoning and then tools."""
    tools = case["tool_parser"] or (case["parser"] if case["expected_tool_calls"] else None)
    kinds = {"reasoning": case["reasoning_parser"], "tools": tools}
    return [f"{kind}/{name}" for kind, name in kinds.items() if name]


def context_of(case: dict[str, Any]) -> ParserContext:
    options = case["flags"].get("chat_template_kwargs", {})
    return ParserContext(template_options=options, tools=[tool.get("function", tool) for tool in case["tools"] or ()])


READY = [case for case in CASES if set(parsers_of(case)) <= SPECS.keys()]


@pytest.mark.parametrize("case", READY, ids=[case["name"] for case in READY])
def test_recorded_case(case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if case["name"] in DISAGREED:
        request.applymarker(pytest.mark.xfail(strict=True, reason="see the table in README.md"))
    context = context_of(case)

    def factory() -> Chain:
        return Chain([make(key, context) for key in parsers_of(case)])

    answer = check_chunking(factory, case["input"], rounds=20)
    for chunks in case["chunkings"]:
        assert parse(factory, chunks) == answer

    def same(got: str, wanted: str | None) -> bool:
        return got == (wanted or "") if "full" in case["modes"] else got.strip() == (wanted or "").strip()

    if (
        len(parsers_of(case)) == 1
        and case["reasoning_parser"]
        and not case["expected_content"]
        and "<tool_call>" in case["input"]
    ):
        # A call in a dialect that is not under test: all of it must be left to that dialect's parser.
        assert answer.content == case["input"].partition("</think>")[2]
    else:
        assert same(answer.content, case["expected_content"])
    if case["reasoning_parser"]:
        assert same(answer.reasoning, case["expected_reasoning"])
    got = [(call.name, value_of(call.arguments)) for call in answer.calls]
    assert got == [(call["name"], value_of(call["arguments"])) for call in case["expected_tool_calls"] or ()]


def value_of(arguments: str) -> Any:
    """Arguments as JSON, or as they are where they are not."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def test_disagreements_are_about_cases() -> None:
    assert {case["name"] for case in CASES} >= DISAGREED

"""Recorded results of another engine's parsers (``cases/``), judged as the README there says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from llmk.api import ParserContext
from llmk_parsers.deepseek_r1 import DeepSeekR1
from llmk_parsers.qwen3 import Qwen3
from llmk_parsers.tools.hermes import Hermes
from llmk_parsers.tools.llama3_json import Llama3Json
from llmk_testing.parsers import check_chunking, parse

PARSERS = {"qwen3": Qwen3, "deepseek_r1": DeepSeekR1, "hermes": Hermes, "llama3_json": Llama3Json}

DISAGREED = {
    "hermes/test_hermes_parser_non_streaming_tool_call_invalid_json_llama_",
    "qwen3/test_drop_tokens_removed_from_output_1-qwen3_#2",
    "qwen3/test_drop_tokens_removed_from_output_1-qwen3_#3",
}
"""Where the recorded result is wrong for users; the table in the package's README says why."""


def load() -> list[tuple[str, dict[str, Any]]]:
    folder = Path(__file__).parent / "cases"
    return [(path.stem, json.loads(line)) for path in sorted(folder.glob("*.jsonl")) for line in path.open()]


CASES = load()


def test_every_recorded_case_is_there() -> None:
    assert Counter(parser for parser, _ in CASES) == {"deepseek_r1": 2, "hermes": 4, "llama3_json": 3, "qwen3": 22}


@pytest.mark.parametrize(("parser", "case"), CASES, ids=[f"{parser}:{case['name']}" for parser, case in CASES])
def test_recorded_case(parser: str, case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if case["name"] in DISAGREED:
        request.applymarker(pytest.mark.xfail(strict=True, reason="see the table in README.md"))
    options = case["flags"].get("chat_template_kwargs", {})
    context = ParserContext(template_options=options, tools=[tool["function"] for tool in case["tools"] or ()])

    def factory() -> Any:
        return PARSERS[parser](context)

    answer = check_chunking(factory, case["input"], rounds=20)
    for chunks in case["chunkings"]:
        assert parse(factory, chunks) == answer

    def same(got: str, wanted: str | None) -> bool:
        return got == (wanted or "") if "full" in case["modes"] else got.strip() == (wanted or "").strip()

    if case["reasoning_parser"] == parser:
        assert same(answer.reasoning, case["expected_reasoning"])
    if case["reasoning_parser"] and "<tool_call>" in case["input"]:
        # A call in a dialect that is not under test: all of it must be left to that dialect's parser.
        assert answer.content == case["input"].partition("</think>")[2]
        return
    assert same(answer.content, case["expected_content"])
    wanted = [(call["name"], call["arguments_json"]) for call in case["expected_tool_calls"] or ()]
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == wanted

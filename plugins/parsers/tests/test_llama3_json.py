from __future__ import annotations

from llmk.api import ParserContext, TextDelta, ToolCallArguments, ToolCallStart
from llmk_parsers.tools.llama3_json import Llama3Json


def llama3_json() -> Llama3Json:
    return Llama3Json(ParserContext())


def test_an_answer_in_json_streams() -> None:
    parser = llama3_json()
    assert parser.push('{"city"') == [TextDelta('{"city"')]
    assert parser.push(': "Par') == [TextDelta(': "Par')]


def test_arguments_arrive_as_they_are_written() -> None:
    parser = llama3_json()
    assert parser.push('{"name": "f", "parameters": {"x') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x')]

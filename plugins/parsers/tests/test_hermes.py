from __future__ import annotations

from llmk.api import ParserContext, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart
from llmk_parsers.tools.hermes import Hermes
from llmk_testing.parsers import check_chunking


def hermes() -> Hermes:
    return Hermes(ParserContext())


def test_arguments_arrive_as_they_are_written() -> None:
    parser = hermes()
    assert list(parser.push('Hi<tool_call>{"name": "f", "arguments": ')) == [TextDelta("Hi")]
    assert list(parser.push("{")) == [ToolCallStart(0, "f"), ToolCallArguments(0, "{")]
    assert list(parser.push('"x": "a')) == [ToolCallArguments(0, '"x": "a')]
    assert list(parser.push('"}')) == [ToolCallArguments(0, '"}')]
    assert list(parser.push("}")) == [ToolCallEnd(0)]
    assert list(parser.push("</tool_call>")) == []
    assert list(parser.finish()) == []


def test_a_call_fails_where_its_arguments_cease_to_be_json() -> None:
    parser = hermes()
    assert list(parser.push('Hi <tool_call>{"name": "f", "arguments": {"x": ')) == [
        TextDelta("Hi "),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, '{"x": '),
    ]
    assert list(parser.push("tr")) == [ToolCallArguments(0, "tr")]
    failed = ToolCallFailed(0, '<tool_call>{"name": "f", "arguments": {"x": tr')
    assert list(parser.push("y}}</tool_call>")) == [failed, TextDelta("y}}"), TextDelta("</tool_call>")]


def test_large_numbers_stay_as_they_are_written() -> None:
    answer = check_chunking(hermes, '<tool_call>{"name": "f", "arguments": {"x": 1e400, "y": -0.0E-7}}</tool_call>')
    assert answer.calls[0].arguments == '{"x": 1e400, "y": -0.0E-7}'

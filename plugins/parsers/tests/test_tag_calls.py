"""Mistakes of models in tags, and how text becomes values."""

from __future__ import annotations

from dialects import make

from llmk.api import ParserContext, ToolCallArguments, ToolCallStart
from llmk_parsers.schema_values import Schema, converted

WEATHER = {
    "name": "weather",
    "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
}


def test_a_string_streams_and_other_values_wait_for_their_end() -> None:
    parser = make("tools/qwen3_coder", ParserContext(tools=[WEATHER]))
    events = parser.push("<tool_call>\n<function=weather>\n<parameter=city>\nOs")
    assert events == [ToolCallStart(0, "weather"), ToolCallArguments(0, '{"city": "'), ToolCallArguments(0, "Os")]
    assert parser.push('l"o\n') == [ToolCallArguments(0, 'l\\"o')]
    assert parser.push("</parameter>\n<parameter=days>\n1") == [
        ToolCallArguments(0, '"'),
        ToolCallArguments(0, ', "days": '),
    ]
    assert parser.push("2\n</parameter>")[0] == ToolCallArguments(0, "12")


def test_references_that_never_end_are_harmless() -> None:
    root = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}}}
    assert converted("1", Schema(root).member("a")) == "1"

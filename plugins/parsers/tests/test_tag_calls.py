"""Mistakes of models in tags, and how text becomes values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dialects import make

from llmk.api import ParserContext, ToolCallArguments, ToolCallStart
from llmk_parsers.schema_values import Schema, converted, decoded
from llmk_testing.parsers import check_chunking

WEATHER = {
    "name": "weather",
    "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
}
CALL = [("weather", {"city": "Oslo", "days": 3})]


def answer(name: str, text: str, tools: tuple[dict[str, Any], ...] = (WEATHER,)) -> tuple[str, list[Any]]:
    found = check_chunking(lambda: make(f"tools/{name}", ParserContext(tools=tools)), text, rounds=20)
    return found.content, [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<function=weather><parameter=city>Oslo<parameter=days>3</function>"),
        ("qwen3_coder", "<tool_call><function=weather><parameter=city>Oslo</parameter><parameter=days>3</parameter>"),
        (
            "qwen3_coder",
            "<tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>,<parameter=days>"
            " 3\n</parameter></tool_call>",
        ),
        (
            "glm45",
            "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key> da"
            "ys </arg_key><arg_value>3</tool_call>",
        ),
        (
            "minimax_m2",
            "<minimax:tool_call><invoke name='weather'><parameter name=city>Oslo</parameter><"
            'parameter name="days">3</invoke>',
        ),
        (
            "deepseek_v4",
            '<｜DSML｜toolcalls><｜DSML｜invoke name="weather"><｜DSML｜parameter name="input" stri'
            'ng="true">{"city": "Oslo", "days": 3}</｜DSML｜parameter></｜DSML｜invoke>',
        ),
        (
            "minicpm5",
            "<function name=\"weather\"><param name=\"arguments\">{'city': 'Oslo', 'days': 3}</param></function>",
        ),
        (
            "minicpm5",
            '<function name="weather"><param name="city"><![CDATA[Oslo]]></param><param name='
            '"days">3</param><param name="x">y</param></function>',
        ),
        ("gemma4", '<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:<|"|>3<|"|>}'),
        (
            "minimax_m3",
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>O'
            "slo]<]minimax[>[</city>]<]minimax[>[<days> 3 ]<]minimax[>[</days>]<]minimax[>[</"
            "tool_call>",
        ),
        ("kimi_k2", '<|tool_call_begin|>weather<|tool_call_argument_begin|>{"city": "Oslo", "days": 3}'),
        (
            "deepseek_v3",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather\n```json\n{"city": "Oslo", "days": '
            "3}<｜tool▁calls▁end｜>",
        ),
        ("apertus", '<|tools_prefix|>[ { "weather" : {"city": "Oslo", "days": 3} } ]'),
    ],
)
def test_a_mistake_is_forgiven(name: str, text: str) -> None:
    assert answer(name, text) == ("", CALL)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "Tags like <tool_call> and <function=name are\nwritten so."),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nOs"),
        ("qwen3_coder", "<tool_call><function=weather><parameter=days>3</parameter>"),
        ("glm45", "<tool_call>weather<arg_key>days</arg_key><arg_value>3</arg_value>"),
        ("minicpm5", '<function name="weather"><param name="days">3</param></function>'),
        ("minicpm5", '<function name="other"><param name="city">Oslo</param></function>'),
        ("gemma4", '<|tool_call>call:weather{city:<|"|>Oslo'),
        ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Oslo'),
        ("kimi_k2", '<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": Oslo}'),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    assert answer(name, text) == (text, [])


def test_a_call_of_an_unknown_tool_is_dropped_where_its_vendor_does() -> None:
    text = '<minimax:tool_call><invoke name="other"><parameter name="x">1</parameter></invoke></minimax:tool_call>'
    assert answer("minimax_m2", text) == ("", [])
    assert answer("minimax_m2", text, tools=()) == ("", [("other", {"x": "1"})])


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


def test_the_id_of_a_call_is_kept() -> None:
    parser = make("tools/kimi_k2")
    text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:7<|tool_call_argument_begin|>{}"
    assert parser.push(text)[0] == ToolCallStart(0, "now", "functions.now:7")


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("42", {}, "42"),
        ("42", {"type": "string"}, "42"),
        (" 42\n", {"type": "integer"}, 42),
        ("4.5", {"type": "integer"}, 4.5),
        ("x", {"type": "integer"}, "x"),
        ("5.0", {"type": "number"}, 5.0),
        ("1e400", {"type": "number"}, "1e400"),
        ("NaN", {"type": "number"}, "NaN"),
        ("1_000", {"type": "integer"}, "1_000"),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("none", {"enum": ["dark", "none"]}, "none"),
        ("2", {"enum": [1, 2]}, 2),
        ("7", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "7"),
        ("7", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, 7),
        ("7", {"type": "integer", "nullable": True}, 7),
        ("7", {"type": "int"}, 7),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("[NaN]", {"type": "array"}, "[NaN]"),
        ('{"a": "1", "b": "1"}', {"properties": {"a": {"type": "integer"}}}, {"a": 1, "b": "1"}),
        ('[{"on": "true"}]', {"items": {"properties": {"on": {"type": "boolean"}}}}, [{"on": True}]),
        ("[" * 500 + "]" * 500, {"type": "array"}, "[" * 500 + "]" * 500),
    ],
)
def test_text_is_converted_by_the_schema(text: str, schema: dict[str, Any], value: Any) -> None:
    found = converted(text, Schema(schema))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("42", {}, 42),
        ("null", {}, None),
        ("x", {}, "x"),
        ("42", {"type": "string"}, "42"),
        ('"a"', {"type": "string"}, "a"),
    ],
)
def test_what_is_declared_to_be_json_is_read_as_json(text: str, schema: dict[str, Any], value: Any) -> None:
    assert decoded(text, Schema(schema)) == value


def test_references_that_never_end_are_harmless() -> None:
    root = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}}}
    assert converted("1", Schema(root).member("a")) == "1"

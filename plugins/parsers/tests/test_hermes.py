from __future__ import annotations

import pytest

from llmk.api import ParserContext, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart
from llmk_parsers.tools.hermes import Hermes
from llmk_testing.parsers import check_chunking, check_parser


def hermes() -> Hermes:
    return Hermes(ParserContext())


F = '{"name": "f", "arguments": {"x": 1}}'
CALL_F = ("f", '{"x": 1}')

CASES = {
    "text only": ("Hello.", "Hello.", []),
    "white space only": (" \n", " \n", []),
    "one call": (f"<tool_call>\n{F}\n</tool_call>", "", [CALL_F]),
    "text around": (f"A\n<tool_call>{F}</tool_call>\nB", "A\n\nB", [CALL_F]),
    "several calls": (f"<tool_call>{F}</tool_call>\n<tool_call>{F}</tool_call>\n", "", [CALL_F] * 2),
    "text between": (f"<tool_call>{F}</tool_call>and<tool_call>{F}</tool_call>", "and", [CALL_F] * 2),
    "several objects in one tag": (f"<tool_call>\n{F}\n{F}\n</tool_call>", "", [CALL_F] * 2),
    "a list": (f"<tool_call>[{F}, {F}]</tool_call>!", "!", [CALL_F] * 2),
    "white space before": (f"\n\n<tool_call>{F}</tool_call>", "", [CALL_F]),
    "no closing tag": (f"<tool_call>{F}", "", [CALL_F]),
    "object cut off": (f"<tool_call>{F[:-1]}", f"<tool_call>{F[:-1]}", []),
    "closing tag cut off": (f"<tool_call>{F}\n</tool_c", "", [CALL_F]),
    "next tag without closing one": (f"<tool_call>{F}<tool_call>{F}</tool_call>", "", [CALL_F] * 2),
    "closing brace missing": (f"<tool_call>{F[:-1]}</tool_call>", "", [CALL_F]),
    "braces too many": (f"<tool_call>{F}}}}}</tool_call>B", "B", [CALL_F]),
    "junk behind the call": (f"<tool_call>{F} oops</tool_call>B", "oopsB", [CALL_F]),
    "arguments first": ('<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [CALL_F]),
    "parameters": ('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "", [CALL_F]),
    "other keys": ('<tool_call>{"id": [1], "name": "f", "arguments": {"x": 1}, "t": "}"}</tool_call>', "", [CALL_F]),
    "white space everywhere": ('<tool_call> {\n"name" : "f" ,\t"arguments" : {"x": 1} , } </tool_call>', "", [CALL_F]),
    "escaped name": (r'<tool_call>{"name": "f\u00e9", "arguments": {}}</tool_call>', "", [("fé", "{}")]),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "null arguments": ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    "empty string arguments": ('<tool_call>{"name": "f", "arguments": " "}</tool_call>', "", [("f", "{}")]),
    "nested": (
        r'<tool_call>{"name": "f", "arguments": {"a": [{"b": "}\"{"}], "c": "</tool_call>"}}</tool_call>',
        "",
        [("f", r'{"a": [{"b": "}\"{"}], "c": "</tool_call>"}')],
    ),
    "arguments in a string": (
        r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\\n\\\"\u00e9\ud83d\ude00</tool_call>\"}"}</tool_call>',
        "",
        [("f", r'{"a": "\n\"é😀</tool_call>"}')],
    ),
    "string that is no object": (
        r'<tool_call>{"name": "f", "arguments": " \"x"}</tool_call>',
        "",
        [("f", r'" \"x"')],
    ),
    "list as arguments": ('<tool_call>{"name": "f", "arguments": [1, 2]}</tool_call>', "", [("f", "[1, 2]")]),
    "number as arguments": ('<tool_call>{"name": "f", "arguments": 12}</tool_call>', "", [("f", "12")]),
    "arguments twice": (
        '<tool_call>{"name": "f", "arguments": {"x": 1}, "arguments": {}}</tool_call>',
        "",
        [CALL_F],
    ),
    "a call behind one that failed": (
        f'A <tool_call>{{"name": "g", "arguments": {{a}}}}</tool_call>\n<tool_call>{F}</tool_call>',
        'A <tool_call>{"name": "g", "arguments": {a}}</tool_call>\n',
        [CALL_F],
    ),
    "not a call, then one": (f"<tool_call><tool_call>{F}</tool_call>", "<tool_call>", [CALL_F]),
    "text after text in tags": (f"<tool_call>no</tool_call>A<tool_call>{F}", "<tool_call>no</tool_call>A", [CALL_F]),
    "a bad object behind a call": (f'<tool_call>{F}\n{{"a": b}}</tool_call>B', '{"a": b}B', [CALL_F]),
}


@pytest.mark.parametrize(("text", "content", "calls"), CASES.values(), ids=CASES)
def test_answer(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    answer = check_chunking(hermes, text, rounds=16)
    assert answer.content == content
    assert [(call.name, call.arguments) for call in answer.calls] == calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "a <tool_call> b",
        "<tool_call>[ [</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call>",
        '<tool_call>{"name" "f"}</tool_call>',
        '<tool_call>{"name": }</tool_call>',
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f\\x", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f</tool_call>',
        '<tool_call>{"name": "f", "arguments":',
        '<tool_call>{"name": "f", "arguments": {"x": "1',
        '<tool_call>{"name": "f", "arguments": {"x": [1</tool_call>B',
        ' \n<tool_call>\n{"name": "f", "arguments": {"x": NaN}}\n</tool_call> B',
        '<tool_call>{"name": "f", "arguments": {"x": -Infinity}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 01}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {x: 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 1,}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "a\nb"}}</tool_call>',
        r'<tool_call>{"name": "f", "arguments": {"x": "\q"}}</tool_call>',
        r'<tool_call>{"name": "f", "arguments": "{\"x\": nothing}"}</tool_call>',
        r'<tool_call>{"name": "f", "arguments": "{\"x\": 1"}</tool_call>',
        r'<tool_call>{"name": "f", "arguments": "{} {}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": <x>}</tool_call>',
        '<tool_call>{"arguments": {"x": 1}}</tool_call>',
        '<tool_call>{"arguments": {"x": 1</tool_call>',
        '<tool_call>{"name": "' + "f" * 300 + '"}</tool_call>',
        "a </tool_call> b",
        "a <tool_cal",
    ],
)
def test_text_that_is_not_a_call_stays_text(text: str) -> None:
    answer = check_chunking(hermes, text, rounds=16)
    assert (answer.content, answer.calls) == (text, [])


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


@pytest.mark.slow
def test_conforms() -> None:
    check_parser(hermes, [case[0] for case in CASES.values()])

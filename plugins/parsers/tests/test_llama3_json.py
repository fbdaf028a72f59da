from __future__ import annotations

import pytest

from llmk.api import ParserContext, TextDelta, ToolCallArguments, ToolCallStart
from llmk_parsers.tools.llama3_json import Llama3Json
from llmk_testing.parsers import check_chunking, check_parser


def llama3_json() -> Llama3Json:
    return Llama3Json(ParserContext())


F = '{"name": "f", "parameters": {"x": "{"}}'
CALL_F = ("f", '{"x": "{"}')

CASES = {
    "one call": (F, "", [CALL_F]),
    "behind the tag": (f"<|python_tag|>{F}", "", [CALL_F]),
    "several": (f"{F}; {F};\n{F}", "", [CALL_F] * 3),
    "text around": (f"Look: {F}; {F} Done.", "Look:  Done.", [CALL_F] * 2),
    "arguments": ('{"type": "function", "name": "f", "arguments": {"x": "{"}}', "", [CALL_F]),
    "answer in JSON": ('{"name": "Ada", "born": 1815}', '{"name": "Ada", "born": 1815}', []),
    "answer that holds a call": (f'{{"calls": [{F}]}}', f'{{"calls": [{F}]}}', []),
    "no parameters": ('{"name": "f"}', '{"name": "f"}', []),
    "call behind an answer": (f'{{"a": 1}} {F}', '{"a": 1} ', [CALL_F]),
    "code behind the tag": ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "no JSON": (
        'Use {"name": "x", "parameters": {a, b}} in your config.',
        'Use {"name": "x", "parameters": {a, b}} in your config.',
        [],
    ),
    "no JSON that holds a call": (
        f'{{"name": "x", "parameters": {{a, {F}}}}}',
        f'{{"name": "x", "parameters": {{a, {F}}}}}',
        [],
    ),
    "tag cut off": ("a <|python", "a <|python", []),
    "text with braces": ("f() { return {}; }", "f() { return {}; }", []),
}


@pytest.mark.parametrize(("text", "content", "calls"), CASES.values(), ids=CASES)
def test_answer(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    answer = check_chunking(llama3_json, text, rounds=16)
    assert answer.content == content
    assert [(call.name, call.arguments) for call in answer.calls] == calls


def test_an_answer_in_json_streams() -> None:
    parser = llama3_json()
    assert parser.push('{"city"') == [TextDelta('{"city"')]
    assert parser.push(': "Par') == [TextDelta(': "Par')]


def test_arguments_arrive_as_they_are_written() -> None:
    parser = llama3_json()
    assert parser.push('{"name": "f", "parameters": {"x') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x')]


def test_conforms() -> None:
    check_parser(llama3_json, [case[0] for case in CASES.values()])

"""Calls written as Python's: which literals there are, what is no call, and what each dialect has around them."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from dialects import make
from hypothesis import given, settings
from hypothesis import strategies as st

from llmk.api import ParserContext, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallFailed, ToolCallStart
from llmk_testing.parsers import Answer, check_chunking, check_linear

TOOLS = [{"name": "f", "parameters": {"type": "object", "properties": {"x": {}, "y": {}}}}]


def read(text: str, dialect: str = "pythonic", tools: Any = ()) -> Answer:
    return check_chunking(lambda: make(f"tools/{dialect}", ParserContext(tools=tools)), text, rounds=16)


VALUES = {
    "integer": ("12", "12"),
    "negative": ("-12", "-12"),
    "plus": ("+12", "12"),
    "leading zeros": ("007", "7"),
    "zero": ("-0", "-0"),
    "underscores": ("1_000_000", "1000000"),
    "hexadecimal": ("0x1F", "31"),
    "octal and binary": ("[0o17, 0b101]", "[15, 5]"),
    "float": ("-1.50", "-1.50"),
    "no whole part": (".5", "0.5"),
    "no fraction": ("5.", "5.0"),
    "exponent": ("1e+05", "1e+05"),
    "larger than a double": ("1e999", "1e999"),
    "constants": ("[True, False, None]", "[true, false, null]"),
    "JSON's constants": ("[true, false, null]", "[true, false, null]"),
    "single quotes": ("""'a "b"'""", r'"a \"b\""'),
    "double quotes": ('''"it's"''', '"it\'s"'),
    "empty strings": ("""['', ""]""", '["", ""]'),
    "three quotes": ("""'''it's\n'a' ''' """, r'"it\'s\n\'a\' "'.replace(r"\'", "'")),
    "escaped quotes": (r"'it\'s \"b\"'", r'"it' + "'" + r's \"b\""'),
    "escapes": (r"'\n\t\\\x41\101\0'", r'"\n\t\\AA\u0000"'),
    "Unicode escapes": (r"'\u00e9\U0001F600\N{BULLET}'", '"é😀•"'),
    "surrogates": (r"'\ud83d\ude00'", r'"\ud83d\ude00"'),
    "escapes that Python refuses": (r"'C:\Users\x \N{no} \d'", r'"C:\\Users\\x \\N{no} \\d"'),
    "line continued": ("'a\\\nb'", '"ab"'),
    "line break": ("'a\nb'", r'"a\nb"'),
    "raw string": (r"r'\d+\n'", r'"\\d+\\n"'),
    "strings side by side": ("'a' \"b\"\n'c'", '"abc"'),
    "list": ("[1, [2, []],]", "[1, [2, []]]"),
    "tuple": ("(1, (2,), ())", "[1, [2], []]"),
    "parentheses": ("((1), ('a' 'b'))", '[1, "ab"]'),
    "set": ("{1, 'a'}", '[1, "a"]'),
    "set of one": ("{'a'}", '["a"]'),
    "dictionary": ("{'a': {}, \"b\": [1],}", '{"a": {}, "b": [1]}'),
    "keys that are no strings": ("{1: 2, True: 3, None: {2.5: ''}}", '{"1": 2, "true": 3, "null": {"2.5": ""}}'),
    "nested": ("{'a': ({'b': {1, 2}}, (3))}", '{"a": [{"b": [1, 2]}, 3]}'),
}


@pytest.mark.parametrize(("written", "wanted"), VALUES.values(), ids=VALUES)
def test_literals_become_json(written: str, wanted: str) -> None:
    (call,) = read(f"[f(x={written}, y=1)]").calls
    assert call.arguments == f'{{"x": {wanted}, "y": 1}}'
    json.loads(call.arguments)


LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(LITERALS, min_size=1, max_size=3))
def test_what_python_writes_is_what_json_says(values: list[Any]) -> None:
    text = ", ".join(f"a{number}={value!r}" for number, value in enumerate(values))
    (call,) = read(f"[f({text})]").calls
    wanted = [json.loads(json.dumps(value)) for value in values]
    assert list(json.loads(call.arguments).values()) == wanted


@settings(max_examples=100, deadline=None)
@given(body=st.text(st.sampled_from("nxuU01a7'\\ N{}"), max_size=10))
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_strings_that_python_takes_say_the_same(body: str) -> None:
    text = '"' + body + '"'
    try:
        wanted = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return
    if any("\ud800" <= character < "\ue000" for character in wanted):
        return
    (call,) = read(f"[f(x={text})]").calls
    assert json.loads(call.arguments) == {"x": wanted}


NOT_CALLS = {
    "bytes": "[f(x=b'z')]",
    "format string": "[f(x=f'z')]",
    "expression": "[f(x=1+2)]",
    "name": "[f(x=y)]",
    "complex number": "[f(x=1j)]",
    "call": "[f(x=g())]",
    "comparison": "[f(x==1)]",
    "repeated keyword": "[f(x=1, x=2)]",
    "unknown parameter": "[f('a')]",
    "list as key": "[f(x={[1]: 2})]",
    "list as later key": "[f(x={'a': 1, [1]: 2})]",
    "missing value": "[f(x={'a': 1, 'b'})]",
    "value missing at the end": "[f(x={'a':})]",
    "two colons": "[f(x={'a': 1: 2})]",
    "wrong bracket": "[f(x=[1)]",
    "unescaped quote": "[f(x='a 'b', y='c')]",
    "cut off in a string": "[f(x='",
    "cut off in a call": "[f(x=1",
    "cut off in a name": "[f",
    "too deep": "[f(x=" + "[" * 100 + "]" * 100 + ")]",
    "long number": "[f(x=" + "1" * 600 + ")]",
    "long name": "[" + "f" * 300 + "()]",
    "a list": "[1, 2]",
    "an empty list": "[ ]",
    "a link": "[f](url) and [f(x)](url)",
    "a check box": "[x] done (now)",
    "in the middle of a line": "as in [f(x=1)]",
    "brackets too many": "[f(x=1])]",
}


@pytest.mark.parametrize("text", NOT_CALLS.values(), ids=NOT_CALLS)
def test_text_that_is_no_call_stays_text(text: str) -> None:
    answer = read(text)
    assert (answer.content, answer.calls) == (text, [])


F, G = ("f", '{"x": 1}'), ("g", "{}")
CASES = {
    "one": ("pythonic", "[f(x=1)]", "", [F]),
    "several": ("pythonic", "[f(x=1), g(),]", "", [F, G]),
    "white space": ("pythonic", "\n[ f ( x = 1 )\n, g( ) ]\n", "", [F, G]),
    "dotted name": ("pythonic", "[a.f(x=1)]", "", [("a.f", F[1])]),
    "name with a dash": ("pythonic", "[a-f(x=1)]", "", [("a-f", F[1])]),
    "keyword of Python": ("pythonic", "[f(from=1)]", "", [("f", '{"from": 1}')]),
    "dictionary of arguments": (
        "pythonic",
        "[f(x=1, **{'a b': 2, 'c': [3]})]",
        "",
        [("f", '{"x": 1, "a b": 2, "c": [3]}')],
    ),
    "dictionary of arguments first": ("pythonic", "[f(**{}, **{'a b': 2}, x=1)]", "", [("f", '{"a b": 2, "x": 1}')]),
    "text around": ("pythonic", "Hi.\n[f(x=1)]\nBye.", "Hi.\n\nBye.", [F]),
    "tag": ("pythonic", "<|python_tag|>[f(x=1)]", "", [F]),
    "two lists": ("pythonic", "[f(x=1)]\n[g()]", "", [F, G]),
    "list cut off": ("pythonic", "[f(x=1), ", "", [F]),
    "one of two is bad": ("pythonic", "[bad(x=b'z'), f(x=1)]", "[bad(x=b'z')", [F]),
    "the last is bad": ("pythonic", "[f(x=1), bad(x=b'z')]", "bad(x=b'z')", [F]),
    "tags of Llama 4": ("llama4_pythonic", "<|python_start|>[f(x=1), g()]<|python_end|>", "", [F, G]),
    "closing tag missing": ("llama4_pythonic", "<|python_start|>[f(x=1)]", "", [F]),
    "no tags": ("llama4_pythonic", "[f(x=1)]", "", [F]),
    "lines": ("olmo3", "<function_calls>\nf(x=1)\ng()\n</function_calls>", "", [F, G]),
    "lines and text": ("olmo3", "A<function_calls>f(x=1)</function_calls>B", "AB", [F]),
    "a list in tags": ("olmo3", "<function_calls>[f(x=1), g()]</function_calls>", "", [F, G]),
    "a bad line": ("olmo3", "<function_calls>bad(x=b'')\nf(x=1)</function_calls>", "<function_calls>bad(x=b'')", [F]),
    "markers": ("lfm2", "<|tool_call_start|>[f(x=1)]<|tool_call_end|>", "", [F]),
    "lines around": ("lfm2", "A \n<|tool_call_start|>[f(x=1)]<|tool_call_end|>\n B ", "A\nB", [F]),
    "text behind alone": ("lfm2", "<|tool_call_start|>[f(x=1)]<|tool_call_end|>\nB", "B", [F]),
    "text alone": ("lfm2", " A \n", " A \n", []),
    "echo": ("lfm2", "<|tool_call_start|>[g()]<|tool_call_end|>[g()]<|tool_call_end|>B", "B", [G]),
    "no echo": ("lfm2", "<|tool_call_start|>[g()]<|tool_call_end|>[g()] B", "[g()] B", [G]),
    "echo cut off": ("lfm2", "<|tool_call_start|>[g()]<|tool_call_end|>[g", "[g", [G]),
    "JSON": ("lfm2", '<|tool_call_start|>[{"name": "f", "arguments": {"x": 1}}]<|tool_call_end|>', "", [F]),
    "empty list": ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>", "<|tool_call_start|>[]<|tool_call_end|>", []),
}


@pytest.mark.parametrize(("dialect", "text", "content", "calls"), CASES.values(), ids=CASES)
def test_answer(dialect: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    answer = read(text, dialect)
    assert answer.content == content
    assert [(call.name, call.arguments) for call in answer.calls] == calls


LOOSE = {
    "quotes inside": ("'sed -n '1,9p' x.py'", "sed -n '1,9p' x.py"),
    "apostrophe": ("'it's'", "it's"),
    "ends with a quote": ("'say 'x''", "say 'x'"),
    "call in a string": ("""'run("f(a='\\,'))")'""", """run("f(a='\\,'))")"""),
    "comma inside": ("'a', b, 'c'", "a', b, 'c"),
    "as Python says": ("'a'", "a"),
    "empty": ("''", ""),
}


@pytest.mark.parametrize("end", [")]<|tool_call_end|>", ", y=2)]<|tool_call_end|>", "), g()]<|tool_call_end|>", ")"])
@pytest.mark.parametrize(("written", "wanted"), LOOSE.values(), ids=LOOSE)
def test_unescaped_quotes_belong_to_the_string(written: str, wanted: str, end: str) -> None:
    call = read(f"<|tool_call_start|>[f(x={written}{end}", "lfm2").calls[0]
    assert json.loads(call.arguments)["x"] == wanted


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("f(1, 2)", {"x": 1, "y": 2}),
        ("f(1, y=2)", {"x": 1, "y": 2}),
        ("f('a' 'b', [True])", {"x": "ab", "y": [True]}),
        ("f(True)", {"x": True}),
        ("f(r'a')", {"x": "a"}),
    ],
)
def test_positional_arguments_are_those_of_the_schema(written: str, wanted: dict[str, Any]) -> None:
    (call,) = read(f"[{written}]", tools=TOOLS).calls
    assert json.loads(call.arguments) == wanted


@pytest.mark.parametrize("text", ["[f(1, 2, 3)]", "[f(1, x=2)]", "[g(1)]"])
def test_positional_arguments_that_no_parameter_takes(text: str) -> None:
    assert read(text, tools=TOOLS).content == text


def test_arguments_stream_as_they_are_written() -> None:
    parser = make("tools/pythonic")
    assert list(parser.push("[f(")) == []
    assert list(parser.push("x='a")) == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"x": '), *pieces('"', "a")]
    assert list(parser.push("b', y=[1")) == [*pieces("b", '"', ', "y": ', "[")]
    assert list(parser.push(", ")) == [*pieces("1")]
    assert list(parser.push("2])")) == [*pieces(", ", "2", "]", "}"), ToolCallEnd(0)]
    assert list(parser.push("]")) == []
    assert list(parser.finish()) == []


def pieces(*texts: str) -> list[ToolCallArguments]:
    return [ToolCallArguments(0, text) for text in texts]


def test_a_call_fails_where_it_ceases_to_be_one() -> None:
    parser = make("tools/pythonic")
    parser.push("[f(x=1, y=")
    assert list(parser.push("z)]")) == [ToolCallFailed(0, "[f(x=1, y=z"), TextDelta(")"), TextDelta("]")]


@pytest.mark.parametrize("dialect", ["pythonic", "lfm2"])
@pytest.mark.parametrize(
    "before", ["[f(x='", "[f(x=", "[f(x={", "[", "<|tool_call_start|>[f(x='", "<|tool_call_start|>[f("]
)
@pytest.mark.parametrize("repeated", ["'", "\\", "(", "{", "[", "a", "' ", "', a", "1", " ", "{'a': ", "\\u0", "**{"])
def test_hostile_text_takes_linear_time(dialect: str, before: str, repeated: str) -> None:
    class Unfinished:
        def __init__(self) -> None:
            self.parser = make(f"tools/{dialect}")
            self.parser.push(f"<|tool_call_start|>{before}" if dialect == "lfm2" else before)
            self.push, self.finish = self.parser.push, self.parser.finish

    check_linear(Unfinished, repeated)

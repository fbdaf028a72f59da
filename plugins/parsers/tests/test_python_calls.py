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


def read(text: str, dialect: str = "pythonic", tools: Any = ()) -> Answer:
    return check_chunking(lambda: make(f"tools/{dialect}", ParserContext(tools=tools)), text, rounds=16)


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

"""What writers of JSON and pythonic dialects write is parsed back, and is what their grammars allow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from dialects import SPECS, load, make
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from llmk.api import CallWriter, RequestError, WrittenCall
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.specs import tools_marks, tools_tags
from llmk_parsers.tag_writer import TagWriter
from llmk_testing.parsers import parse

BY_SCHEMA = {f"tools/{spec.name}" for spec in [*tools_tags.TOOL_PARSERS, *tools_marks.TOOL_PARSERS]}
BY_SCHEMA |= {name for name, spec in SPECS.items() if spec.writer and isinstance(load(spec.writer), TagWriter)}
"""Dialects that can express arguments only with their schema, see ``test_tag_writers.py``."""
DIALECTS = {name: spec for name, spec in SPECS.items() if spec.writer and name not in BY_SCHEMA}
TOKENIZER = LLTokenizer("byte")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,20}", fullmatch=True)
TOOLS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"$ref": "#/$defs/point"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"point": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
        },
    },
    {"name": "now"},
]
GOOD: list[list[tuple[str, dict[str, Any]]]] = [
    [("weather", {"city": "Oslo"})],
    [("weather", {"city": 'a "quoted" {name} [x]\n</tool_call> é', "days": 3, "where": [1.5, -2]})],
]
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown tool": ("other", {}),
    "missing argument": ("weather", {"days": 1}),
    "wrong type": ("weather", {"city": "Oslo", "days": "3"}),
    "unknown argument": ("weather", {"city": "Oslo", "other": 1}),
    "wrong nested type": ("weather", {"city": "Oslo", "where": ["x"]}),
}


def writer(name: str) -> CallWriter:
    found: CallWriter = load(DIALECTS[name].writer)
    return found


def written(calls: list[tuple[str, dict[str, Any]]]) -> list[WrittenCall]:
    return [WrittenCall(name, arguments, f"id{number}") for number, (name, arguments) in enumerate(calls)]


def matches(grammar: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def plain(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_written_is_parsed_back(name: str, data: st.DataObject) -> None:
    arguments = st.dictionaries(st.text(max_size=8), JSON, max_size=4)
    calls = data.draw(st.lists(st.tuples(NAMES, arguments), min_size=1, max_size=3))
    text = writer(name).render(written(calls))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    answer = parse(lambda: make(name), chunks)
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls
    assert answer.content == ""


@pytest.mark.parametrize("name", DIALECTS)
def test_names_foreign_to_the_dialect_follow_empty_texts(name: str) -> None:
    calls = [("A", {"A": "", "": None})]
    text = writer(name).render(written(calls))
    for cut in range(len(text) + 1):
        answer = parse(lambda: make(name), [text[:cut], text[cut:]])
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls, cut


@pytest.mark.parametrize("name", [name for name in DIALECTS if isinstance(writer(name), JsonWriter)])
@settings(max_examples=30, deadline=None)
@given(called=st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True))
def test_any_name_that_clients_may_send_is_parsed_back(name: str, called: str) -> None:
    text = writer(name).render(written([(called, {})]))
    assert [call.name for call in parse(lambda: make(name), [text]).calls] == [called]


@pytest.mark.parametrize("name", DIALECTS)
def test_grammar_allows_what_is_written(name: str) -> None:
    one, more = (writer(name).grammar(TOOLS, many=many, marker=plain) for many in (False, True))
    for calls in GOOD:
        text = writer(name).render(written(calls))
        assert matches(one, text)
        assert matches(more, text)
    several = writer(name).render(written([*GOOD[1], ("now", {}), *GOOD[0]]))
    assert matches(more, several)
    assert not matches(one, several)
    assert not matches(more, "")


def wrong() -> Iterator[Any]:
    for name in DIALECTS:
        for what, call in BAD.items():
            yield pytest.param(name, call, id=f"{name}: {what}")


@pytest.mark.parametrize(("name", "call"), list(wrong()))
def test_grammar_refuses_what_violates_the_schema(name: str, call: tuple[str, dict[str, Any]]) -> None:
    text = writer(name).render(written([call]))
    assert not matches(writer(name).grammar(TOOLS, many=True, marker=plain), text)


@pytest.mark.parametrize("name", DIALECTS)
def test_calls_start_with_the_trigger(name: str) -> None:
    terms: list[str] = []

    def marker(text: str) -> str:
        terms.append(text)
        return plain(text)

    found = writer(name)
    found.grammar(TOOLS, many=True, marker=marker)
    assert found.render(written(GOOD[0])).startswith(found.trigger)
    assert not found.trigger or found.trigger in terms


PYTHONIC = ["tools/pythonic", "tools/llama4_pythonic", "tools/lfm2", "tools/olmo3"]


@pytest.mark.parametrize("name", PYTHONIC)
@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"name": "1f"}, "calls of tool '1f' can't be written in this model's dialect: rename it as in Python"),
        (
            {"name": "f", "parameters": {"anyOf": [{}]}},
            "calls of tool 'f' can't follow 'anyOf' of its schema in this model's dialect",
        ),
    ],
)
def test_what_python_calls_cannot_follow_is_refused(name: str, tool: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        writer(name).grammar([tool], many=False, marker=plain)
    assert str(caught.value) == message


ARGUMENTS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b c": {"type": "boolean"}, "d": {"enum": ["x", None]}, "e": True},
    "required": ["b c", "z"],
}


@pytest.mark.parametrize("name", PYTHONIC)
@pytest.mark.parametrize(
    ("arguments", "matched"),
    [
        ({"b c": True, "z": 1}, True),
        ({"a": 1, "b c": False, "d": None, "e": [{}], "z": {}}, True),
        ({"a": 1, "b c": False, "e": "x", "z": {}}, True),
        ({"b c": False, "a": 1, "z": {}}, False),
        ({"b c": True}, False),
        ({"z": 1}, False),
        ({"a": "1", "b c": True, "z": 1}, False),
        ({"b c": True, "d": "y", "z": 1}, False),
        ({}, False),
    ],
)
def test_keyword_arguments_follow_the_schema(name: str, arguments: dict[str, Any], matched: bool) -> None:
    text = writer(name).render(written([("f", arguments)]))
    grammar = writer(name).grammar([{"name": "f", "parameters": ARGUMENTS}], many=False, marker=plain)
    assert matches(grammar, text) == matched

"""What writers of dialects with tags and markers write is parsed back, and is what their grammars allow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from llmk.api import CallWriter, ParserContext, WrittenCall
from llmk.kernel.loader import load_object as load
from llmk_parsers.specs import tools_channels, tools_marks, tools_tags
from llmk_parsers.tag_writer import TagWriter
from llmk_testing.parsers import parse

CHANNELS = [spec for spec in tools_channels.TOOL_PARSERS if isinstance(load(spec.writer), TagWriter)]
DIALECTS = {spec.name: spec for spec in [*tools_tags.TOOL_PARSERS, *tools_marks.TOOL_PARSERS, *CHANNELS]}
TOKENIZER = LLTokenizer("byte")
POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["x"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        "\n",
        " a\n",
        "null",
        "42",
        "true",
        "{",
        '{"a": 1}',
        '"',
        "<b>x</b>",
        "a < b && c > d",
        "</",
        "<",
        "é😀",
        "\\n",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), inner),
    max_leaves=6,
)
SCHEMAS.update(
    text=({"type": "string"}, TEXT),
    count=({"type": "integer"}, st.integers()),
    ratio=({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    flag=({"type": "boolean"}, st.booleans()),
    maybe=({"anyOf": [{"type": "integer"}, {"type": "null"}]}, st.none() | st.integers()),
    point=(
        {"$ref": "#/$defs/point"},
        st.fixed_dictionaries(
            {"x": st.integers() | st.floats(-1e9, 1e9)}, optional={"tags": st.lists(TEXT, max_size=3)}
        ),
    ),
    names=({"type": "array", "items": {"type": "string"}}, st.lists(TEXT, max_size=3)),
    free=({"type": "object"}, st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), JSON, max_size=3)),
)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,20}", fullmatch=True)


def writer(name: str) -> CallWriter:
    found: CallWriter = load(DIALECTS[name].writer)
    return found


def tool(name: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: SCHEMAS[argument][0] for argument in arguments}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(arguments)[:1],
        "$defs": {"point": POINT},
    }
    return {"name": name, "parameters": parameters}


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(item)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_written_is_parsed_back(name: str, data: st.DataObject) -> None:
    drawn = st.lists(st.sampled_from(list(SCHEMAS)), unique=True, max_size=4)
    tools = [
        tool(found, *data.draw(drawn)) for found in data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    ]
    found = writer(name)
    calls = []
    for wanted in data.draw(st.lists(st.sampled_from(tools), min_size=1, max_size=3)):
        arguments = {argument: data.draw(SCHEMAS[argument][1]) for argument in wanted["parameters"]["properties"]}
        quote = getattr(getattr(found, "marks", None), "quote", None)
        if not any(
            stop in text for text in strings(arguments) for stop in [*getattr(found, "stops", ()), quote] if stop
        ):
            calls.append((wanted["name"], arguments))
    if not calls:
        return
    text = found.render([WrittenCall(called, arguments) for called, arguments in calls])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    parser = load(DIALECTS[name].implementation)
    answer = parse(lambda: parser(ParserContext(tools=tools)), chunks)
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls
    assert answer.content == ""


def matches(grammar: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


TOOLS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "where": {"$ref": "#/$defs/point"},
                "unit": {"enum": ["c", "f"]},
                "note": {"type": ["string", "null"]},
                "at": POINT,
            },
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"point": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
        },
    },
    {"name": "now"},
]
GOOD: list[list[tuple[str, dict[str, Any]]]] = [
    [("weather", {"city": "Oslo", "days": 1})],
    [("weather", {"city": 'a "b" {c}\n</div> é <', "days": -3, "where": [1.5, -2], "unit": "c"})],
    [("weather", {"city": "", "days": 1, "note": "x", "at": {"x": 1, "tags": ["a", "b"]}})],
    [("weather", {"city": "x", "days": 1, "note": None, "at": {"x": 1}})],
    [("now", {})],
]
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown tool": ("other", {}),
    "missing argument": ("weather", {"city": "Oslo"}),
    "wrong type": ("weather", {"city": "Oslo", "days": 1.5}),
    "unknown argument": ("weather", {"city": "Oslo", "days": 1, "other": 1}),
    "wrong nested type": ("weather", {"city": "Oslo", "days": 1, "where": ["x"]}),
    "unknown choice": ("weather", {"city": "Oslo", "days": 1, "unit": "k"}),
    "missing nested argument": ("weather", {"city": "Oslo", "days": 1, "at": {"tags": []}}),
}


def plain(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize("name", DIALECTS)
def test_grammar_allows_what_is_written(name: str) -> None:
    found = writer(name)
    one, more = (found.grammar(TOOLS, many=many, marker=plain) for many in (False, True))
    for calls in GOOD:
        text = found.render([WrittenCall(*call) for call in calls])
        assert matches(one, text), text
        assert matches(more, text), text
    several = found.render([WrittenCall(*call) for calls in GOOD for call in calls])
    assert matches(more, several)
    assert not matches(one, several)
    assert not matches(more, "")


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("what", BAD)
def test_grammar_refuses_what_violates_the_schema(name: str, what: str) -> None:
    found = writer(name)
    assert not matches(found.grammar(TOOLS, many=True, marker=plain), found.render([WrittenCall(*BAD[what])]))


@pytest.mark.parametrize("name", DIALECTS)
def test_calls_start_with_the_trigger(name: str) -> None:
    found = writer(name)
    assert found.trigger or name == "beam"  # whose marker is that of the prompt
    assert found.render([WrittenCall("now", {})]).startswith(found.trigger)


@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4"])
def test_what_the_text_of_a_string_cannot_follow_is_refused(name: str) -> None:
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": "string", "format": "email"}}}}]
    with pytest.raises(ValueError, match=r"'format'.* can't be enforced in this model's dialect"):
        writer(name).grammar(tools, many=False, marker=plain)
